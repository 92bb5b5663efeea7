"""Presets: against the text of the papers, and against the rules and `make_private` that take them."""

import copy
import inspect
import pickle

import pytest
from torch import nn

import adamas
from adamas.data import DATASETS
from adamas.models import MODELS
from adamas.rules import RULES, presets
from adamas.rules.presets import PRESETS, Preset, preset

# (name, method) as far as the papers ran them.
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
OWN = {
    "dp-adambc": "adam-bc",
    "dp-adamw": "adamw",
    "dp-microadam": "micro-adam",
    "dp-macadam": "macadam",
}
ALL = [(name, method) for name, methods in METHODS.items() for method in methods]

# Arguments that make_private needs and the papers do not give.
OPEN = {
    "dp-adambc/snli-eps3": {"steps"},
    "dp-adambc/qnli": {"steps"},
    "dp-adambc/sst2": {"steps"},
    "dp-adambc/ogbn-arxiv": {"steps", "noise", "clip_norm"},
    "dp-adambc/ogbn-arxiv-eps3": {"steps", "noise", "clip_norm"},
    **{f"dp-adamw/qnli-eps{e}": {"clip_norm"} for e in (1, 3, 7)},
    **{f"dp-adamw/ogbn-arxiv-eps{e}": {"steps", "clip_norm", "batch_size", "delta"} for e in (3, 6, 12)},
}


# --- the list -------------------------------------------------------------------------------------------


def test_all_experiments_are_listed():
    assert set(PRESETS) == set(METHODS)
    assert len(PRESETS) == len(set(PRESETS))


@pytest.mark.parametrize("name", METHODS)
def test_the_method_is_the_papers_own_by_default(name):
    own = OWN[name.split("/")[0]]
    assert preset(name).rule == own
    assert preset(name) == preset(name, own)


@pytest.mark.parametrize(("name", "method"), ALL)
def test_every_preset_says_what_it_is(name, method):
    found = preset(name, method)
    assert (found.name, found.rule) == (name, method)
    assert found.data in name.split("/")[1]
    assert found.model
    assert any(word in found.source for word in ("Table", "Appendix", "Section"))
    assert found.notes.endswith(".")


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_a_paper_did_not_run_are_refused_with_those_that_it_did(name):
    for method in {"rmsprop", *OWN.values(), "sgd"} - set(METHODS[name]):
        with pytest.raises(ValueError, match=f"method='{method}'") as error:
            preset(name, method)
        assert all(repr(known) in str(error.value) for known in METHODS[name])


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="name='dp-adambc/mnist'") as error:
        preset("dp-adambc/mnist")
    assert all(repr(name) in str(error.value) for name in PRESETS)


def test_corrected_must_be_a_truth_value():
    with pytest.raises(TypeError, match="corrected='no'"):
        preset("dp-adambc/cifar10", corrected="no")


def test_a_preset_is_a_copy_that_cannot_be_assigned_to():
    first = preset("dp-macadam/mnist-sigma0.5")
    with pytest.raises(AttributeError):
        first.rule = "sgd"
    first.options["lr"] = 7.0
    first.training["delta"] = 0.5
    assert preset("dp-macadam/mnist-sigma0.5").options["lr"] == 1e-3
    assert preset("dp-macadam/mnist-sigma0.6").training["delta"] == 1e-5
    second = preset("dp-macadam/mnist-sigma0.5")
    assert copy.deepcopy(second) == pickle.loads(pickle.dumps(second)) == second
    assert isinstance(second, Preset)


# --- the rules and make_private take them ---------------------------------------------------------------


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(("name", "method"), ALL)
def test_the_rule_takes_the_options(name, method, corrected):
    found = preset(name, method, corrected=corrected)
    known = inspect.signature(RULES[method]).parameters
    assert set(found.options) <= set(known) - {"params"}
    model = nn.Linear(3, 2)
    rule = found.make_rule(model.parameters())
    assert type(rule) is RULES[method]
    for option, value in found.options.items():
        assert rule.param_groups[0][option] == value


@pytest.mark.parametrize(("name", "method"), ALL)
def test_make_private_takes_the_training(name, method):
    training = preset(name, method).training
    assert set(training) <= set(inspect.signature(adamas.make_private).parameters)
    missing = {argument for argument in ("clip_norm", "batch_size", "delta") if argument not in training}
    budget, length = ("epsilon", "noise_multiplier"), ("epochs", "steps")
    assert sum(argument in training for argument in budget) <= 1
    assert sum(argument in training for argument in length) <= 1
    missing |= set() if any(argument in training for argument in budget) else {"noise"}
    missing |= set() if any(argument in training for argument in length) else {"steps"}
    assert missing == OPEN.get(name, set())


@pytest.mark.parametrize("name", OPEN)
def test_the_notes_say_what_the_paper_leaves_open(name):
    notes = preset(name).notes
    words = {
        "steps": ("no number of steps", "nor a number of steps", "nor steps", "until epsilon"),
        "noise": ("noise multiplier",),
        "clip_norm": ("clip_norm in {", "clip norm"),
        "batch_size": ("nor batch size",),
        "delta": ("nor delta",),
    }
    for missing in OPEN[name]:
        assert any(text in notes for text in words[missing]), missing


# --- as published, or corrected -------------------------------------------------------------------------


PUBLISHED_FORMS = {
    "adamw": {"eps_placement": "inside"},
    "micro-adam": {"bits": None, "scope": "tensor"},
    "macadam": {"kappa": "paper", "noise_correction": "paper"},
    "macadam-bc": {"kappa": "paper", "noise_correction": "paper", "phi": "paper"},
}


@pytest.mark.parametrize(("name", "method"), ALL)
def test_corrected_leaves_out_the_published_forms_and_nothing_else(name, method):
    published, corrected = preset(name, method), preset(name, method, corrected=True)
    forms = PUBLISHED_FORMS.get(method, {})
    assert published.options == corrected.options | forms
    assert not set(forms) & set(corrected.options)
    assert published.training == corrected.training


@pytest.mark.parametrize("method", PUBLISHED_FORMS)
def test_the_published_forms_are_not_the_defaults(method):
    defaults = inspect.signature(RULES[method]).parameters
    for option, value in PUBLISHED_FORMS[method].items():
        assert defaults[option].default != value


# --- the values, as the papers print them ---------------------------------------------------------------

CIFAR10 = {"clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 8192}
BERT = {"clip_norm": 0.1, "noise_multiplier": 0.4, "batch_size": 256}

# (name, method) -> options and training that the preset has, word for word from the papers.
PRINTED = {
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


@pytest.mark.parametrize(("name", "method"), PRINTED)
def test_the_values_are_those_of_the_paper(name, method):
    found = preset(name, method)
    options, training = PRINTED[name, method]
    assert {key: found.options.get(key, "missing") for key in options} == options
    assert {key: found.training.get(key, "missing") for key in training} == training


# What no paper prints: from the authors' code, or the value that gives the paper's results.
NOT_PRINTED = {
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


@pytest.mark.parametrize(("name", "method"), NOT_PRINTED)
def test_values_that_no_paper_prints_are_named_in_the_notes(name, method):
    found = preset(name, method)
    expected = NOT_PRINTED[name, method]
    assert {key: (found.options | found.training)[key] for key in expected} == expected
    assert any(text in found.notes for text in ("code's", "The paper gives"))


@pytest.mark.parametrize(("name", "method"), ALL)
def test_delta_is_1e_5_but_on_imagenet(name, method):
    delta = preset(name, method).training.get("delta")
    if "delta" not in OPEN.get(name, set()):
        assert delta == (8e-7 if name == "dp-microadam/imagenet" else 1e-5)


def test_sgd_has_neither_momentum_nor_weight_decay():
    for name, method in ALL:
        if method == "sgd":
            options = preset(name, method).options
            assert options.get("momentum", 0.0) == options.get("weight_decay", 0.0) == 0.0


@pytest.mark.parametrize(("data", "steps"), [("cifar10", 50 * 11), ("cifar100", 90 * 11)])
def test_the_two_lengths_of_the_fine_tuning_are_named(data, steps):
    # Table 7: 50 and 90 epochs, of ceil(45000/4096) = 11 steps; Table 10 has other numbers.
    found = preset(f"dp-microadam/{data}-deit-base")
    assert str(steps) in found.notes
    assert found.training["steps"] != steps


@pytest.mark.parametrize(("name", "searched"), [("dp-adamw/qnli-eps3", ("lr", "weight_decay", "clip_norm"))])
def test_what_was_only_searched_is_in_the_notes(name, searched):
    for method in METHODS[name]:
        found = preset(name, method)
        for key in searched:
            assert key not in found.options | found.training
            assert f"{key} in" in found.notes


def test_the_models_are_those_of_the_papers():
    assert preset("dp-macadam/mnist-sigma0.5").model in MODELS
    assert preset("dp-macadam/mnist-sigma0.5").data in DATASETS
    assert preset("dp-microadam/imagenet").model == "wrn-16-4"
    assert preset("dp-microadam/imagenet", "sgd").model == "nf-resnet-50"
    assert preset("dp-adambc/cifar10").model == preset("dp-adamw/cifar10-eps1").model
    # DP-MacAdam's is "similar", with 582,346 parameters: another one.
    assert preset("dp-macadam/cifar10-sigma0.5").model != preset("dp-adambc/cifar10").model


def test_the_number_of_steps_of_macadam_is_that_of_its_epsilons():
    # 5 ceil(60000/256) = 1175 and 5 ceil(50000/512) = 490.
    for name, n, steps in [("mnist", 60_000, 1175), ("cifar10", 50_000, 490)]:
        training = preset(f"dp-macadam/{name}-sigma0.5").training
        assert training["epochs"] * -(-n // training["batch_size"]) == steps


def test_the_package_exports_them():
    assert presets.preset is adamas.rules.preset
    assert presets.PRESETS is adamas.rules.PRESETS
    assert presets.Preset is adamas.rules.Preset
