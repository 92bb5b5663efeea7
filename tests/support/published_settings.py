"""The settings of the papers' experiments, quoted from the papers."""

# Experiment -> methods that its paper ran.
ADAM_BC = ("sgd", "adam", "adam-bc")
MICRO_ADAM = ("micro-adam", "adam", "adam-bc", "scale-then-privatize", "sgd")
MACADAM = ("sgd", "adaclip", "adam", "adam-bc", "macadam", "macadam-bc")
METHODS: dict[str, tuple[str, ...]] = {
    "dp-adambc/cifar10": ADAM_BC,
    "dp-adambc/snli": ADAM_BC,
    "dp-adambc/snli-eps3": ("adam", "adam-bc"),
    "dp-adambc/qnli": ADAM_BC,
    "dp-adambc/sst2": ("adam", "adam-bc"),
    "dp-adambc/ogbn-arxiv": ADAM_BC,
    "dp-adambc/ogbn-arxiv-eps3": ADAM_BC,
    **{f"dp-adamw/cifar10-eps{e}": ("adamw", "adamw-bc") for e in (1, 3, 7)},
    **{f"dp-adamw/qnli-eps{e}": ("adamw", "adamw-bc") for e in (1, 3, 7)},
    **{f"dp-adamw/ogbn-arxiv-eps{e}": ("adamw", "adamw-bc") for e in (3, 6, 12)},
    **{f"dp-microadam/cifar10-sigma{s}": MICRO_ADAM for s in (3, 4, 5, 6, 8)},
    "dp-microadam/imagenet": ("micro-adam", "sgd"),
    **{f"dp-microadam/cifar10-deit-{size}": ("micro-adam",) for size in ("tiny", "small", "base")},
    **{f"dp-microadam/cifar100-deit-{size}": ("micro-adam",) for size in ("tiny", "small", "base")},
    **{f"dp-macadam/mnist-sigma{s}": MACADAM for s in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)},
    **{f"dp-macadam/cifar10-sigma{s}": MACADAM for s in (0.5, 0.6, 0.8, 1.1, 1.5)},
}
# Paper -> the method that it introduces.
OWN = {
    "dp-adambc": "adam-bc",
    "dp-adamw": "adamw",
    "dp-microadam": "micro-adam",
    "dp-macadam": "macadam",
}

ALL = [(name, method) for name, methods in METHODS.items() for method in methods]
# Experiment -> arguments that make_private needs and the paper does not state.
OPEN = {
    "dp-adambc/snli-eps3": {"steps"},
    "dp-adambc/qnli": {"steps"},
    "dp-adambc/sst2": {"steps"},
    "dp-adambc/ogbn-arxiv": {"steps", "noise", "clip_norm"},
    "dp-adambc/ogbn-arxiv-eps3": {"steps", "noise", "clip_norm"},
    **{f"dp-adamw/qnli-eps{e}": {"clip_norm"} for e in (1, 3, 7)},
    **{f"dp-adamw/ogbn-arxiv-eps{e}": {"steps", "clip_norm", "batch_size", "delta"} for e in (3, 6, 12)},
}
CIFAR10 = {"clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 8192}
BERT = {"clip_norm": 0.1, "noise_multiplier": 0.4, "batch_size": 256}
# (experiment, method) -> options and training of the preset, with the paper's own words.
STATED = {
    # DP-AdamBC, Appendix A: "C=1.0, sigma=2.0, batch size = 8192, target epsilon=7.1 ... The learning rate
    # for DP-AdamBC, DP-Adam and DP-SGD are 0.005, 0.007 and 2.5 respectively. ... gamma'=5e-8 and gamma=1e-8
    # ... beta_1=0.9, beta_2=0.999". Section 5: "delta = 1e-5".
    ("dp-adambc/cifar10", "adam-bc"): (
        {"lr": 0.005, "floor": 5e-8, "betas": (0.9, 0.999)},
        CIFAR10 | {"delta": 1e-5},
    ),
    ("dp-adambc/cifar10", "adam"): ({"lr": 0.007, "eps": 1e-8, "betas": (0.9, 0.999)}, CIFAR10),
    ("dp-adambc/cifar10", "sgd"): ({"lr": 2.5}, CIFAR10),
    # "SNLI, ... C=0.1, sigma=0.4, batch size =256, target epsilon=7.0 ... The learning rate for DP-AdamBC,
    # DP-Adam and DP-SGD are 0.001, 0.01 and 45.0 ... gamma'=1e-10 and gamma=1e-8".
    ("dp-adambc/snli", "adam-bc"): ({"lr": 0.001, "floor": 1e-10}, BERT),
    ("dp-adambc/snli", "adam"): ({"lr": 0.01, "eps": 1e-8}, BERT),
    ("dp-adambc/snli", "sgd"): ({"lr": 45.0}, BERT),
    # "QNLI, ... C=0.1, sigma=0.4, B=256, target epsilon=7.3 ... 0.003, 0.01 and 40.0 respectively ...
    # gamma'=3e-9 and gamma=1e-8".
    ("dp-adambc/qnli", "adam-bc"): ({"lr": 0.003, "floor": 3e-9}, BERT),
    ("dp-adambc/qnli", "adam"): ({"lr": 0.01, "eps": 1e-8}, BERT),
    ("dp-adambc/qnli", "sgd"): ({"lr": 40.0}, BERT),
    # "batch size of 10,000 and target epsilon=12.0 ... 0.003, 0.008, and 0.7 respectively. ... gamma'=2e-6
    # and gamma=1e-12".
    ("dp-adambc/ogbn-arxiv", "adam-bc"): ({"lr": 0.003, "floor": 2e-6}, {"batch_size": 10_000}),
    ("dp-adambc/ogbn-arxiv", "adam"): ({"lr": 0.008, "eps": 1e-12}, {"batch_size": 10_000}),
    ("dp-adambc/ogbn-arxiv", "sgd"): ({"lr": 0.7}, {"batch_size": 10_000}),
    # Appendix D: "SNLI dataset with target epsilon=3 ... lr_DP-Adam=0.005, gamma'_DP-Adam=1e-8,
    # lr_DP-AdamBC=0.005, gamma_DP-AdamBC=5e-9, B=256, C=0.1, sigma=0.5".
    ("dp-adambc/snli-eps3", "adam"): ({"lr": 0.005, "eps": 1e-8}, BERT | {"noise_multiplier": 0.5}),
    ("dp-adambc/snli-eps3", "adam-bc"): ({"lr": 0.005, "floor": 5e-9}, BERT | {"noise_multiplier": 0.5}),
    # "lr_DP-Adam = 0.1, gamma_DP-Adam = 1e-8, lr_DP-AdamBC = 0.0001, gamma_DP-AdamBC = 4.3e-9,
    # lr_DP-SGD = 0.24"; "batch size B = 10,000", for DP-SGD "B = 2000".
    ("dp-adambc/ogbn-arxiv-eps3", "adam"): ({"lr": 0.1, "eps": 1e-8}, {"batch_size": 10_000}),
    ("dp-adambc/ogbn-arxiv-eps3", "adam-bc"): ({"lr": 0.0001, "floor": 4.3e-9}, {"batch_size": 10_000}),
    ("dp-adambc/ogbn-arxiv-eps3", "sgd"): ({"lr": 0.24}, {"batch_size": 2000}),
    # "SST2 ... lr_DP-Adam=0.005, gamma'_DP-Adam=1e-8, lr_DP-AdamBC=0.003, gamma_DP-AdamBC=3e-9, B=256,
    # C=0.1, sigma=0.4".
    ("dp-adambc/sst2", "adam"): ({"lr": 0.005, "eps": 1e-8}, BERT),
    ("dp-adambc/sst2", "adam-bc"): ({"lr": 0.003, "floor": 3e-9}, BERT),
    # DP-AdamW, Appendix C.1: "C = 1.0 and utilized Adam stability parameters of 5e-8 ... 70 epochs using a
    # batch size of 1024 ... lambda = 1e-5". Table 4: 0.0015, 0.0015, 0.002 and 1e-4, 2e-4, 4e-4.
    **{
        (f"dp-adamw/cifar10-eps{epsilon}", method): (
            {"lr": lr, stability: 5e-8, "weight_decay": 1e-5},
            {"clip_norm": 1.0, "batch_size": 1024, "epochs": 70, "epsilon": epsilon},
        )
        for method, stability, rates in [
            ("adamw", "eps", (0.0015, 0.0015, 0.002)),
            ("adamw-bc", "floor", (1e-4, 2e-4, 4e-4)),
        ]
        for epsilon, lr in zip((1, 3, 7), rates, strict=True)
    },
    # Appendix C.2: "10 epochs with a batch size of B = 32", "we fix gamma = 10^-8 for the minimum variance
    # term in DP-AdamW-BC".
    ("dp-adamw/qnli-eps7", "adamw-bc"): ({"floor": 1e-8}, {"batch_size": 32, "epochs": 10, "epsilon": 7}),
    # Table 7, all rows.
    ("dp-adamw/ogbn-arxiv-eps3", "adamw"): ({"lr": 0.01246956, "weight_decay": 0.000004780}, {"epsilon": 3}),
    ("dp-adamw/ogbn-arxiv-eps6", "adamw"): ({"lr": 0.00806904, "weight_decay": 0.0000091133}, {"epsilon": 6}),
    ("dp-adamw/ogbn-arxiv-eps12", "adamw"): (
        {"lr": 0.00427425, "weight_decay": 0.0000709134},
        {"epsilon": 12},
    ),
    ("dp-adamw/ogbn-arxiv-eps3", "adamw-bc"): (
        {"lr": 0.00021068, "weight_decay": 0.0000324537},
        {"epsilon": 3},
    ),
    ("dp-adamw/ogbn-arxiv-eps6", "adamw-bc"): (
        {"lr": 0.00007306, "weight_decay": 0.0000012885},
        {"epsilon": 6},
    ),
    ("dp-adamw/ogbn-arxiv-eps12", "adamw-bc"): (
        {"lr": 0.00004086, "weight_decay": 0.03112375},
        {"epsilon": 12},
    ),
    # DP-MicroAdam, Table 5: batch size 4096, eta 0.001 and 4.0, betas (0.9, 0.999), C = 1.0. Section 5:
    # "epsilon_s = 10^-8". Table 8: 2480, 4556, 7227, 10492, 18798 updates at sigma = 3, 4, 5, 6, 8.
    **{
        (f"dp-microadam/cifar10-sigma{sigma}", method): (
            {"lr": lr} | ({"betas": (0.9, 0.999)} if method != "sgd" else {}),
            {
                "clip_norm": 1.0,
                "noise_multiplier": sigma,
                "batch_size": 4096,
                "steps": steps,
                "delta": 1e-5,
            },
        )
        for method, lr in [
            ("micro-adam", 0.001),
            ("adam", 0.001),
            ("adam-bc", 0.001),
            ("scale-then-privatize", 0.001),
            ("sgd", 4.0),
        ]
        for sigma, steps in [(3, 2480), (4, 4556), (5, 7227), (6, 10492), (8, 18798)]
    },
    # Tables 6 and 9: 16,384, 0.001, 1.0, 2.5, EMA 0.99999, 71,528 updates; De et al. 4.0 and 71,589.
    ("dp-microadam/imagenet", "micro-adam"): (
        {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "density": 0.01, "bits": None, "scope": "tensor"},
        {
            "clip_norm": 1.0,
            "noise_multiplier": 2.5,
            "batch_size": 16384,
            "steps": 71528,
            "delta": 8e-7,
            "ema": 0.99999,
        },
    ),
    ("dp-microadam/imagenet", "sgd"): (
        {"lr": 4.0},
        {"noise_multiplier": 2.5, "batch_size": 16384, "steps": 71589},
    ),
    # Tables 7 and 10: 4096, 0.001, C = 1.0, sigma 1.56 and 2, 539 and 994 updates.
    **{
        (f"dp-microadam/{data}-deit-{size}", "micro-adam"): (
            {"lr": 0.001, "betas": (0.9, 0.999)},
            {"clip_norm": 1.0, "noise_multiplier": sigma, "batch_size": 4096, "steps": steps},
        )
        for data, sigma, steps in [("cifar10", 1.56, 539), ("cifar100", 2, 994)]
        for size in ("tiny", "small", "base")
    },
    # DP-MacAdam, Section IV: "eta=0.1 for DP-SGD and eta=0.001 for the rest ... beta_1=0.9, beta_2=0.999,
    # and gamma=10^-8. All models are trained for 5 epochs with a batch size B=256 for MNIST and B=512 for
    # CIFAR-10 ... C=1.0 ... delta=10^-5". Table I: h1 = 1e-9, h2 = 1e-6; Table II: h1 = 5e-5, h2 = 1.0.
    **{
        (f"dp-macadam/{data}-sigma{sigma}", method): (
            options | ({"h1": h1, "h2": h2} if "mac" in method or method == "adaclip" else {}),
            {
                "clip_norm": 1.0,
                "noise_multiplier": sigma,
                "batch_size": batch_size,
                "epochs": 5,
                "delta": 1e-5,
            },
        )
        for data, sigmas, batch_size, h1, h2 in [
            ("mnist", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 256, 1e-9, 1e-6),
            ("cifar10", (0.5, 0.6, 0.8, 1.1, 1.5), 512, 5e-5, 1.0),
        ]
        for sigma in sigmas
        for method, options in [
            ("sgd", {"lr": 0.1}),
            ("adaclip", {"lr": 0.001}),
            ("adam", {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8}),
            ("adam-bc", {"lr": 0.001, "betas": (0.9, 0.999)}),
            ("macadam", {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8}),
            ("macadam-bc", {"lr": 0.001, "betas": (0.9, 0.999)}),
        ]
    },
}

# (experiment, method) -> values that no paper states: from the authors' code, or found by reproduction.
NOT_STATED = {
    ("dp-adambc/cifar10", "adam-bc"): {"steps": 240},
    ("dp-adambc/snli", "adam-bc"): {"epochs": 5},
    **{
        (f"dp-adambc/ogbn-arxiv{level}", method): {"betas": (0.9, 0.99)}
        for level in ("", "-eps3")
        for method in ("adam", "adam-bc")
    },
    ("dp-microadam/cifar10-sigma3", "micro-adam"): {"window": 10, "density": 0.01, "weight_decay": 0.0},
    ("dp-microadam/cifar10-sigma3", "adam-bc"): {"floor": 5e-8},
    ("dp-microadam/cifar10-sigma3", "scale-then-privatize"): {"scale_eps": 1e-2},
    ("dp-macadam/mnist-sigma0.5", "macadam-bc"): {"floor": 1e-8},
    ("dp-macadam/mnist-sigma0.5", "adam-bc"): {"floor": 1e-8},
    ("dp-macadam/cifar10-sigma0.5", "macadam-bc"): {"floor": 5e-8},
    ("dp-macadam/cifar10-sigma0.5", "adam-bc"): {"floor": 5e-8},
}
