"""Data: the published hyperparameters of four papers, in the form that `adamas.rules.presets` reads.

A value is here if its paper fixes it, or if the authors' code does and the notes say so. The notes hold what
a paper only searched over or does not state.

References:
    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.

    Jay Chooi, Kevin Cong, Russell Li, Lillian Sun. "DP-AdamW: Investigating Decoupled Weight Decay and Bias
    Correction in Private Deep Learning." 2025. arXiv:2511.07843.

    Mihaela Hudişteanu, Nikita P. Kalinin, Edwige Cyffers. "DP-MicroAdam: Private and Frugal Algorithm for
    Training and Fine-tuning." 2025. arXiv:2511.20509.

    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adamas.rules.base import Options

PUBLISHED_FORMS: dict[str, Options] = {
    "adamw": {"eps_placement": "inside"},
    "micro-adam": {"bits": None, "scope": "tensor"},
    "macadam": {"kappa": "paper", "noise_correction": "paper"},
    "macadam-bc": {"kappa": "paper", "noise_correction": "paper", "phi": "paper"},
}
"""Options that select the published form of a rule where the library's default differs."""


@dataclass(frozen=True)
class Published:
    """One experiment of a paper.

    Attributes:
        own: The paper's own method.
        methods: Method -> options, without those of `PUBLISHED_FORMS`.
        remarks: Method -> a sentence added to the notes.
        changes: Method -> its "training" and "model" where they differ.
    """

    source: str
    data: str
    model: str
    training: Options
    own: str
    methods: dict[str, Options]
    notes: str
    remarks: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_BETAS = (0.9, 0.999)


def _adam_bc() -> dict[str, Published]:
    """DP-AdamBC (Tang, Shpilevskiy and Lecuyer, AAAI 2024), Appendices A and D."""
    table: dict[str, Published] = {}
    paper = "DP-AdamBC (Tang et al., 2024), Appendix"

    def methods(sgd: float | None, adam: float, bc: float, eps: float, floor: float, betas: Any) -> Any:
        rows = {
            "sgd": {"lr": sgd},
            "adam": {"lr": adam, "betas": betas, "eps": eps},
            "adam-bc": {"lr": bc, "betas": betas, "floor": floor},
        }
        return {name: row for name, row in rows.items() if row["lr"] is not None}

    table["dp-adambc/cifar10"] = Published(
        source=f"{paper} A",
        data="cifar10",
        model="cnn5",
        training={
            "clip_norm": 1.0,
            "noise_multiplier": 2.0,
            "batch_size": 8192,
            "steps": 240,
            "delta": 1e-5,
        },
        own="adam-bc",
        methods=methods(2.5, 0.007, 0.005, 1e-8, 5e-8, _BETAS),
        notes=(
            "The paper gives epsilon = 7.1 by RDP and no number of steps: 240, which are 40 epochs of 6 "
            "full batches, cost 7.06."
        ),
        remarks={"sgd": "The authors' code has momentum 0.9 here, which the paper does not mention."},
    )
    bert = {"clip_norm": 0.1, "noise_multiplier": 0.4, "batch_size": 256, "delta": 1e-5}
    large = "delta is above 1/N, which make_private refuses without allow_large_delta=True"
    table["dp-adambc/snli"] = Published(
        source=f"{paper} A",
        data="snli",
        model="bert-base-cased",
        training=bert | {"epochs": 5},
        own="adam-bc",
        methods=methods(45.0, 0.01, 0.001, 1e-8, 1e-10, _BETAS),
        notes=(
            "The 5 epochs are the authors' code's, and the paper's epsilon = 7.0 holds at that code's "
            "delta = 4.7e-4, not at 1e-5, where RDP gives 10.1; "
            f"{large}; the last encoder block and the classifier start at random."
        ),
    )
    table["dp-adambc/snli-eps3"] = Published(
        source=f"{paper} D",
        data="snli",
        model="bert-base-cased",
        training=bert | {"noise_multiplier": 0.5},
        own="adam-bc",
        methods=methods(None, 0.005, 0.005, 1e-8, 5e-9, _BETAS),
        notes=(
            "The paper gives epsilon = 3 and no number of steps, and swaps the names of eps and floor; "
            f"{large}."
        ),
    )
    table["dp-adambc/qnli"] = Published(
        source=f"{paper} A",
        data="qnli",
        model="bert-base-cased",
        training=bert,
        own="adam-bc",
        methods=methods(40.0, 0.01, 0.003, 1e-8, 3e-9, _BETAS),
        notes=(
            "The paper gives epsilon = 7.3 and no number of steps: at delta = 1e-5 two epochs already "
            f"cost 12.6 by RDP; {large}."
        ),
    )
    table["dp-adambc/sst2"] = Published(
        source=f"{paper} D",
        data="sst2",
        model="bert-large",
        training=bert,
        own="adam-bc",
        methods=methods(None, 0.005, 0.003, 1e-8, 3e-9, _BETAS),
        notes="The paper gives neither epsilon nor a number of steps, and swaps the names of eps and floor.",
    )
    graph = (
        "The noise and the clip norm are not those of make_private, which does not know that a node takes "
        "part in its neighbours' gradients, with sensitivity 2(K + 1)C"
    )
    table["dp-adambc/ogbn-arxiv"] = Published(
        source=f"{paper} A",
        data="ogbn-arxiv",
        model="dp-gcn",
        training={"batch_size": 10_000, "delta": 1e-5},
        own="adam-bc",
        methods=methods(0.7, 0.008, 0.003, 1e-12, 2e-6, (0.9, 0.99)),
        notes=(
            f"{graph}: noise multiplier 2 at degree K = 7 until epsilon = 12, clip norm the median of the "
            "layers' 75th percentiles; beta2 = 0.99 is the authors' code's."
        ),
    )
    table["dp-adambc/ogbn-arxiv-eps3"] = Published(
        source=f"{paper} D",
        data="ogbn-arxiv",
        model="dp-gcn",
        training={"batch_size": 10_000, "delta": 1e-5},
        own="adam-bc",
        methods=methods(0.24, 0.1, 0.0001, 1e-8, 4.3e-9, (0.9, 0.99)),
        notes=(
            f"{graph}: for DP-Adam and DP-AdamBC noise multiplier 2.7, K = 6 and C = 3e-4 until epsilon = 3, "
            "a clip norm that the authors' code applies to gradients already divided by the batch size; "
            "beta2 = 0.99 is that code's."
        ),
        remarks={"sgd": "For DP-SGD noise multiplier 2.3, K = 4 and C = 1.5e-3."},
        changes={"sgd": {"training": {"batch_size": 2000}}},
    )
    return table


def _adamw() -> dict[str, Published]:
    """DP-AdamW (Chooi, Cong, Li and Sun, 2025), Appendices C to E."""
    table: dict[str, Published] = {}
    paper = "DP-AdamW (Chooi et al., 2025)"
    for epsilon, lr, lr_bc in [(1, 0.0015, 1e-4), (3, 0.0015, 2e-4), (7, 0.002, 4e-4)]:
        table[f"dp-adamw/cifar10-eps{epsilon}"] = Published(
            source=f"{paper}, Table 4 and Appendix C.1",
            data="cifar10",
            model="cnn5",
            training={
                "clip_norm": 1.0,
                "epsilon": float(epsilon),
                "batch_size": 1024,
                "epochs": 70,
                "delta": 1e-5,
            },
            own="adamw",
            methods={
                "adamw": {"lr": lr, "betas": _BETAS, "eps": 5e-8, "weight_decay": 1e-5},
                "adamw-bc": {"lr": lr_bc, "betas": _BETAS, "floor": 5e-8, "weight_decay": 1e-5},
            },
            notes=(
                "The paper gives no delta and no betas, so those of DP-AdamBC stand here; the decay changes "
                "the weights by 1e-4 of their size or less over the whole run."
            ),
        )
        table[f"dp-adamw/qnli-eps{epsilon}"] = Published(
            source=f"{paper}, Appendix C.2",
            data="qnli",
            model="bert-base-cased",
            training={"epsilon": float(epsilon), "batch_size": 32, "epochs": 10, "delta": 1e-5},
            own="adamw",
            methods={"adamw": {"betas": _BETAS}, "adamw-bc": {"betas": _BETAS, "floor": 1e-8}},
            notes=(
                "The paper only gives what it searched: lr in [1e-6, 5e-3], weight_decay in {0, 1e-5, 1e-4}, "
                "clip_norm in {0.05, 0.1, 0.2}; no delta and no betas, so those of DP-AdamBC stand here, and "
                "delta is above 1/N, which make_private refuses without allow_large_delta=True; the weights "
                "start from the checkpoint, unlike DP-AdamBC's."
            ),
        )
    for epsilon, (lr, decay), (lr_bc, decay_bc) in [
        (3, (0.01246956, 0.000004780), (0.00021068, 0.0000324537)),
        (6, (0.00806904, 0.0000091133), (0.00007306, 0.0000012885)),
        (12, (0.00427425, 0.0000709134), (0.00004086, 0.03112375)),
    ]:
        table[f"dp-adamw/ogbn-arxiv-eps{epsilon}"] = Published(
            source=f"{paper}, Table 7",
            data="ogbn-arxiv",
            model="dp-gcn",
            training={"epsilon": float(epsilon)},
            own="adamw",
            methods={
                "adamw": {"lr": lr, "weight_decay": decay},
                "adamw-bc": {"lr": lr_bc, "weight_decay": decay_bc},
            },
            notes=(
                "The paper gives neither clip norm nor batch size nor steps nor delta nor the floor here, "
                "and make_private does not know that a node takes part in its neighbours' gradients."
            ),
        )
    return table


def _micro_adam() -> dict[str, Published]:
    """DP-MicroAdam (Hudisteanu, Kalinin and Cyffers, 2025), Tables 5 to 10."""
    table: dict[str, Published] = {}
    paper = "DP-MicroAdam (Hudisteanu et al., 2025)"
    adam = {"lr": 1e-3, "betas": _BETAS, "eps": 1e-8}
    micro = adam | {"weight_decay": 0.0, "density": 0.01, "window": 10}
    window = "The window of 10 is the authors' code's, which keeps the error in full precision"
    for sigma, steps in [(3.0, 2480), (4.0, 4556), (5.0, 7227), (6.0, 10_492), (8.0, 18_798)]:
        table[f"dp-microadam/cifar10-sigma{sigma:g}"] = Published(
            source=f"{paper}, Tables 4, 5 and 8",
            data="cifar10",
            model="wrn-16-4",
            training={
                "clip_norm": 1.0,
                "noise_multiplier": sigma,
                "batch_size": 4096,
                "steps": steps,
                "delta": 1e-5,
            },
            own="micro-adam",
            methods={
                "micro-adam": micro,
                "adam": adam,
                "adam-bc": {"lr": 1e-3, "betas": _BETAS, "floor": 5e-8},
                "scale-then-privatize": adam | {"scale_eps": 1e-2},
                "sgd": {"lr": 4.0, "momentum": 0.0, "weight_decay": 0.0},
            },
            notes="The steps are those that cost epsilon = 8 by RDP on 45,000 training images.",
            remarks={
                "micro-adam": f"{window}.",
                "adam-bc": "The floor is the authors' code's; the paper's 1e-8, squared, is another one.",
                "scale-then-privatize": (
                    "scale_eps is the authors' code's, and that code does not scale the gradients before it "
                    "clips them, so the paper's column is another algorithm."
                ),
            },
        )
    table["dp-microadam/imagenet"] = Published(
        source=f"{paper}, Tables 2, 6 and 9",
        data="imagenet",
        model="wrn-16-4",
        training={
            "clip_norm": 1.0,
            "noise_multiplier": 2.5,
            "batch_size": 16_384,
            "steps": 71_528,
            "delta": 8e-7,
            "ema": 0.99999,
        },
        own="micro-adam",
        methods={"micro-adam": micro, "sgd": {"lr": 4.0}},
        notes=(
            "delta is above 1/N for the 1,271,167 images that are left for training, which make_private "
            "refuses without allow_large_delta=True."
        ),
        remarks={
            "micro-adam": f"{window}.",
            "sgd": "This column is De et al. (2022), with 4 augmentations of each image.",
        },
        changes={"sgd": {"training": {"steps": 71_589}, "model": "nf-resnet-50"}},
    )
    for data, sigma, steps, epochs in [("cifar10", 1.56, 539, 50), ("cifar100", 2.0, 994, 90)]:
        for size in ("tiny", "small", "base"):
            table[f"dp-microadam/{data}-deit-{size}"] = Published(
                source=f"{paper}, Tables 3, 7 and 10",
                data=data,
                model=f"deit-{size}",
                training={
                    "clip_norm": 1.0,
                    "noise_multiplier": sigma,
                    "batch_size": 4096,
                    "steps": steps,
                    "delta": 1e-5,
                },
                own="micro-adam",
                methods={"micro-adam": micro},
                notes=(
                    f"lr follows a cosine after a warm-up of 2% of the steps, of which Table 10 has {steps} "
                    f"and Table 7's {epochs} epochs make {epochs * 11}."
                ),
                remarks={"micro-adam": f"{window}."},
            )
    return table


def _macadam() -> dict[str, Published]:
    """DP-MacAdam (Tasnim, Sankar and Kosut, 2026), Tables I and II."""
    table: dict[str, Published] = {}
    for number, data, model, batch_size, sigmas, h1, h2, floor in [
        ("I", "mnist", "mlp", 256, (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 1e-9, 1e-6, 1e-8),
        ("II", "cifar10", "cnn", 512, (0.5, 0.6, 0.8, 1.1, 1.5), 5e-5, 1.0, 5e-8),
    ]:
        bounds = {"h1": h1, "h2": h2}
        unknown = f"The paper gives no floor: {floor:g} stands here"
        reason = "since it reproduces the table" if number == "I" else "from the DP-AdamBC paper"
        unit = "clip_norm = 1 is the unit ball of the whitened gradients"
        for sigma in sigmas:
            table[f"dp-macadam/{data}-sigma{sigma}"] = Published(
                source=f"DP-MacAdam (Tasnim et al., 2026), Table {number} and Section IV",
                data=data,
                model=model,
                training={
                    "clip_norm": 1.0,
                    "noise_multiplier": sigma,
                    "batch_size": batch_size,
                    "epochs": 5,
                    "delta": 1e-5,
                },
                own="macadam",
                methods={
                    "sgd": {"lr": 0.1},
                    "adaclip": {"lr": 1e-3} | bounds,
                    "adam": {"lr": 1e-3, "betas": _BETAS, "eps": 1e-8},
                    "adam-bc": {"lr": 1e-3, "betas": _BETAS, "floor": floor},
                    "macadam": {"lr": 1e-3, "betas": _BETAS, "eps": 1e-8} | bounds,
                    "macadam-bc": {"lr": 1e-3, "betas": _BETAS, "floor": floor} | bounds,
                },
                notes="The paper's epsilon is 0.01 above the tight one, as Opacus' PRV accountant gives it.",
                remarks={
                    "adaclip": f"The paper gives no betas for AdaClip; {unit}.",
                    "adam-bc": f"{unknown}, {reason}.",
                    "macadam": f"{unit[0].upper()}{unit[1:]}.",
                    "macadam-bc": f"{unknown}, {reason}; {unit}.",
                },
            )
    return table


TABLE = _adam_bc() | _adamw() | _micro_adam() | _macadam()
"""Experiments by the name of their preset."""
