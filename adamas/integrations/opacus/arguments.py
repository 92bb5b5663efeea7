"""Refuses arguments that have no exact counterpart, before anything is made."""

from typing import Any, NoReturn

from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from adamas._guards.datasets import advice_on_weights
from adamas.errors import UnsupportedError
from adamas.integrations.opacus.loader import PrivateLoader
from adamas.integrations.opacus.module import PrivateModule
from adamas.integrations.opacus.optimizer import PrivateOptimizer
from adamas.loading import dataset_length

GHOST = "ghost"
_MODES = ("hooks", "functorch", "ew", GHOST)
_OTHER_MODES = {
    "ghost_fsdp": "sharded parameters. Train the plain module on every process with "
    "adamas.make_private(..., distributed=True)",
    "ghost_tp": "sharded parameters. Train the plain module on every process with "
    "adamas.make_private(..., distributed=True)",
    "no_op": "per-example gradients that the module computes itself, which cannot be checked. Use 'hooks'",
}
_OWN = (PrivateLoader, PrivateModule, PrivateOptimizer)


def check_options(
    *,
    batch_first: bool,
    loss_reduction: str,
    poisson_sampling: bool,
    clipping: str,
    noise_generator: Any,
    grad_sample_mode: str,
    wrap_model: bool,
    rand_on_empty: bool,
    max_grad_norm: Any,
) -> None:
    """Raises for an option that has no exact counterpart."""
    if isinstance(max_grad_norm, list | tuple):
        _refuse("max_grad_norm", max_grad_norm, "clips each layer by itself. Give one number")
    if not batch_first:
        _refuse(
            "batch_first", batch_first, "puts time before the examples. Transpose in the module's forward"
        )
    if loss_reduction not in ("mean", "sum"):
        raise ValueError(f"Expected loss_reduction={loss_reduction!r} to be 'mean' or 'sum'.")
    if not isinstance(poisson_sampling, bool):
        raise TypeError(f"Expected poisson_sampling={poisson_sampling!r} to be True or False.")
    if clipping != "flat":
        _refuse(
            "clipping",
            clipping,
            "is another mechanism ('per_layer': other norms; 'adaptive': further releases). Use 'flat', with "
            "a rule that adapts its geometry, such as adamas.rules.MacAdam, if one norm does not fit all",
        )
    if noise_generator is not None:
        _refuse(
            "noise_generator",
            noise_generator,
            "would draw the noise from a generator that others may read. For a reproducible run, "
            "give PrivacyEngine(seed=)",
        )
    if grad_sample_mode in _OTHER_MODES:
        _refuse("grad_sample_mode", grad_sample_mode, f"expects {_OTHER_MODES[grad_sample_mode]}")
    if grad_sample_mode not in _MODES:
        raise ValueError(f"Expected grad_sample_mode={grad_sample_mode!r} to be one of {', '.join(_MODES)}.")
    if not wrap_model:
        _refuse(
            "wrap_model",
            wrap_model,
            "returns hooks, and none are made here. Use the module that make_private returns: it has the "
            "attributes of yours, which is not changed",
        )
    if rand_on_empty:
        _refuse(
            "rand_on_empty",
            rand_on_empty,
            "adds an example to a batch without any. Leave it out: such a batch releases noise alone",
        )


def check_objects(module: object, optimizer: object, data_loader: object) -> None:
    """Raises for objects that Opacus or this package has wrapped, and for objects of another type."""
    for name, value in (("module", module), ("optimizer", optimizer), ("data_loader", data_loader)):
        if isinstance(value, _OWN):
            raise TypeError(
                f"Expected {name} as it was before make_private, got {type(value).__name__}. Make one run "
                "of it, and loop as often as you like."
            )
        for kind in type(value).__mro__:
            if kind.__module__.partition(".")[0] == "opacus":
                raise TypeError(
                    f"Expected {name} as it was before Opacus wrapped it, got {kind.__name__}, which clips "
                    "or samples by itself. Pass the plain one."
                )
    if not isinstance(module, nn.Module):
        raise TypeError(f"Expected module to be a torch.nn.Module, got {type(module).__name__}.")
    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"Expected data_loader to be a DataLoader, got {type(data_loader).__name__}.")


def check_loader(data_loader: DataLoader[Any], *, poisson_sampling: bool) -> None:
    """Raises for a data loader whose way to draw batches has no counterpart in a run."""
    n = dataset_length(data_loader.dataset)
    if data_loader.batch_size is None:
        raise UnsupportedError(
            "Expected data_loader with batch_size=, got one with a batch_sampler of its own or without "
            "batches: the accountant does not know how it draws examples. Give batch_size."
        )
    sampler = data_loader.sampler
    plain = isinstance(sampler, SequentialSampler) or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == n
    )
    if not plain:
        raise UnsupportedError(
            f"Expected data_loader with shuffle=True or False, got sampler={type(sampler).__name__}: its "
            "sampling probabilities would differ from the rate that is accounted for. Leave the "
            "sampler out, and take torch.utils.data.Subset for a part of the data set."
            + advice_on_weights(sampler)
        )
    for name in ("worker_init_fn", "generator", "multiprocessing_context"):
        if getattr(data_loader, name) is not None:
            raise UnsupportedError(
                f"Expected data_loader without {name}=: the run draws batches and seeds workers by its "
                "own seed. Leave it out, and give PrivacyEngine(seed=) for a reproducible run."
            )
    if not poisson_sampling and data_loader.drop_last and n % data_loader.batch_size:
        raise UnsupportedError(
            f"Expected data_loader without drop_last=True for poisson_sampling=False, as batch_size="
            f"{data_loader.batch_size} does not divide {n}: shuffled epochs use every record."
        )


def own_collate(data_loader: DataLoader[Any]) -> Any:
    """Returns the user's collate_fn; None for torch's."""
    return None if data_loader.collate_fn is default_collate else data_loader.collate_fn


def _refuse(name: str, value: Any, why: str) -> NoReturn:
    raise UnsupportedError(f"{name}={value!r} is not supported: it {why}.")
