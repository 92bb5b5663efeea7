"""The workloads and methods by name.

This module does not import torch: the parent process of a measurement reads it, and must stay small (`rounds.py`).
"""

import importlib
from dataclasses import dataclass

TOKENS = 128  # of the text workloads


@dataclass(frozen=True)
class Workload:
    """A model and a batch. `builder` is a function of `workloads.py`."""

    batch: int
    builder: str
    note: str

    def build(self, batch=None, tokens=None, seed=0):
        """Returns the model, the inputs and the targets."""
        import torch

        from peer_steps import workloads

        torch.manual_seed(seed)
        model, x, y = getattr(workloads, self.builder)(batch or self.batch, tokens or TOKENS)
        return model.train(), x, y


@dataclass(frozen=True)
class MethodEntry:
    """A class of `methods/`. Importing its module imports its library.

    `--check` compares the methods that clip to a ball, and no others.
    """

    module: str
    cls: str
    note: str
    clips_to_ball: bool = True

    def load(self):
        """Returns the class."""
        return getattr(importlib.import_module(f"peer_steps.methods.{self.module}"), self.cls)


WORKLOADS = {
    "W1": Workload(256, "mlp", "MLP 784-1000-10, ReLU"),
    "W2": Workload(256, "cnn", "5-layer CNN conv32-conv64-conv64-fc128-fc10, 3x32x32"),
    "W3": Workload(32, "wide_resnet", "Wide-ResNet-16-4, GroupNorm(16), plain convolutions"),
    "W3ws": Workload(
        32,
        "standardised_wide_resnet",
        "as W3 with weight-standardised convolutions (nn.Conv2d subclass)",
    ),
    "W4": Workload(
        16,
        "transformer",
        "Transformer encoder 6x384, ff 1536, 12 heads, seq 128, vocab 30522, all trainable",
    ),
    "W5": Workload(16, "frozen_transformer", "as W4, only last block + final norm + head trainable"),
}

METHODS = {
    "plain": MethodEntry("non_private", "Plain", "non-private, torch.optim.Adam default", False),
    "plain_fused": MethodEntry("non_private", "PlainFused", "non-private, Adam(fused=True)", False),
    "floor": MethodEntry(
        "non_private",
        "Floor",
        "non-private gradient + one Gaussian draw per parameter + fused Adam (not DP: no clipping)",
        False,
    ),
    "adamas": MethodEntry("with_adamas", "Adamas", "engine bookkeeping, flat clipping"),
    "adamas_coord": MethodEntry(
        "with_adamas",
        "AdamasCoordinates",
        "engine bookkeeping, a random center and scale per coordinate",
        False,
    ),
    "vmap": MethodEntry("with_vmap", "Vmap", "hand-written torch.func vmap(grad), flat clipping"),
    "opacus_hooks": MethodEntry(
        "with_opacus", "Opacus", "GradSampleModule, grad_sample_mode=hooks, flat clipping"
    ),
    "opacus_functorch": MethodEntry(
        "with_opacus", "OpacusFunctorch", "GradSampleModule(force_functorch=True)"
    ),
    "opacus_ew": MethodEntry("with_opacus", "OpacusExpandedWeights", "GradSampleModuleExpandedWeights"),
    "opacus_ghost": MethodEntry(
        "with_opacus", "OpacusGhost", "ghost / fast gradient clipping, two backward passes"
    ),
    "fastdp_bk": MethodEntry(
        "with_fastdp", "FastDP", "fastDP BK-MixOpt, origin_params=None (library default)"
    ),
    "fastdp_bk_origin": MethodEntry(
        "with_fastdp", "FastDPOrigin", "fastDP BK-MixOpt + origin-parameter trick"
    ),
    "pt_ghost": MethodEntry(
        "with_private_transformers",
        "PrivateTransformers",
        "private-transformers ghost clipping; source tree at $PT_SRC",
    ),
}


def make_stepper(args, workload, method, clip, sigma, seed=0):
    """Returns a method that is not set up yet, with the model, inputs and targets of a workload."""
    model, x, y = WORKLOADS[workload].build(args.batch, args.seq, seed)
    return METHODS[method].load()(len(x), clip, sigma), model, x, y


def described(error):
    """Returns the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
