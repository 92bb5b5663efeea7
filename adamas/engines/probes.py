"""Tries model and loss on a few examples: can per-example gradients be exact?"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adamas._guards.state import unchanged
from adamas._nests import batch_length, map_tensors, named_tensors
from adamas.engines.base import Loss, check_losses
from adamas.engines.leaves import leaves_of, refuse_leaf
from adamas.errors import UnsupportedError

PROBE_EXAMPLES = 3
"""On how many examples a model is tried."""

PADDED_EXAMPLES = 8
"""How many padded examples of a batch are compared with themselves as they are."""


def check_loss(model: nn.Module, loss: Loss, sample: Any) -> None:
    """Tries the loss on a few examples: its shape, and whether it changes state or differentiates itself.

    Nothing is left on the model, and no value of the data appears in an error.
    """
    n = batch_length(sample)
    gradients = [(p, p.grad) for p in model.parameters()]
    try:
        with unchanged(model, loss), torch.enable_grad():
            inputs = map_tensors(lambda x: x.detach(), sample)
            for p, _ in gradients:
                p.grad = None
            with _Refusing(model):
                losses = loss(model, inputs)
            if any(p.grad is not None for p, _ in gradients):
                raise UnsupportedError(_BACKWARD)
            check_losses(losses, n)
            own = set(model.parameters())
            for leaf in leaves_of(losses):
                if isinstance(leaf, nn.Parameter) and leaf not in own:
                    refuse_leaf(leaf)
    finally:
        for p, gradient in gradients:
            p.grad = gradient


def compare_alone(model: nn.Module, loss: Loss, sample: Any) -> None:
    """Compares the loss of each of a few examples with that of the example alone.

    A loss that mixes examples means something else to an engine that computes each example by itself.
    """
    n = batch_length(sample)
    if n > 1 and _differ(model, loss, sample, [_example(sample, i) for i in range(n)]):
        if _draws(model, loss, sample):
            raise UnsupportedError(
                "loss(model, batch) draws random values otherwise than by dropout, so that an example cannot "
                "be compared with itself alone in its batch. Draw them in the data set's __getitem__, whose "
                "generators the run seeds, or use dropout."
            )
        raise UnsupportedError(_MIXED + " (The loss of an example differs when it is alone in its batch.)")


def compare_padded(model: nn.Module, loss: Loss, sample: Any, alone: Sequence[Any]) -> None:
    """Compares the losses of padded examples with those of the same examples without padding.

    Args:
        model: The model.
        loss: One loss per example.
        sample: Some examples as a batch.
        alone: Each of them as a batch of one.
    """
    shapes = [[x.shape[1:] for _, x in named_tensors(batch)] for batch in (sample, *alone)]
    if any(shape != shapes[0] for shape in shapes) and _differ(model, loss, sample, alone):
        raise UnsupportedError(
            "loss(model, batch) depends on how far an example is padded, so that the longest example of a "
            "batch changes the gradients of the others, which no clipping bounds. Mask the padding in every "
            "layer and in the loss, pad texts at their ends (tokenizer.padding_side = 'right'), or let "
            "collate_fn pad all batches to one length."
        )


def _drawing(model: nn.Module) -> list[nn.Module]:
    """Returns the modules that drop values at random."""
    random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
    return [m for m in model.modules() if isinstance(m, random)]


def _draws(model: nn.Module, loss: Loss, sample: Any) -> bool:
    """Tells whether the losses of one batch differ from call to call, without dropout."""
    with _evaluation(_drawing(model)), torch.enable_grad(), _WithoutDropout():
        first, second = loss(model, sample), loss(model, sample)
    return not torch.equal(first.detach().nan_to_num(), second.detach().nan_to_num())


def _differ(model: nn.Module, loss: Loss, sample: Any, alone: Sequence[Any]) -> bool:
    """Tells whether the losses of a batch differ from those of its examples, without dropout."""
    with _evaluation(_drawing(model)), torch.enable_grad(), _WithoutDropout() as mode:
        together = loss(model, sample)
        try:
            single = torch.cat([loss(model, example) for example in alone])
        except UnsupportedError:
            raise
        except (ArithmeticError, LookupError, RuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"loss(model, batch) fails for a single example ({type(error).__name__}). Let it take a "
                "batch of one, as sampling may draw it: for example, squeeze(1) in place of squeeze()."
            ) from error
        eps = max(torch.finfo(kind).eps for kind in (together.dtype, *mode.narrow))
        differ = (together - single).abs() > min(0.1, 1000 * eps) * (1 + single.abs())  # False for NaN
        if bool((differ | (together.isfinite() != single.isfinite())).any()):
            return True
        return _gradients_differ(model, together, single, min(0.1, 1e5 * eps))


def _gradients_differ(model: nn.Module, together: Tensor, single: Tensor, tolerance: float) -> bool:
    """Tells whether an example's gradient differs; the losses agree if the last layer is 0."""
    params = [p for p in model.parameters() if p.requires_grad]

    def gradient(loss: Tensor) -> Tensor:
        found = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        return torch.cat([torch.zeros(1), *(g.detach().flatten().cpu() for g in found if g is not None)])

    try:
        pairs = [(gradient(a), gradient(b)) for a, b in zip(together, single, strict=True)]
    except RuntimeError:  # a re-entrant checkpoint does not support it
        return False
    return any(a.shape != b.shape or bool((a - b).norm() > tolerance * (b.norm() + 1e-20)) for a, b in pairs)


_DROPOUTS = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"),
    *("alpha_dropout", "feature_alpha_dropout"),
}


class _WithoutDropout(TorchFunctionMode):
    """Disables dropout, and notes which 16-bit types the forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow: set[torch.dtype] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:  # query, key, value, mask, dropout
            kwargs = kwargs | ({"dropout_p": 0.0} if len(args) < 5 else {})
            args = (*args[:4], 0.0, *args[5:]) if len(args) >= 5 else args
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.dtype in (torch.bfloat16, torch.float16):
            self.narrow.add(result.dtype)
        return result


class _Refusing(TorchFunctionMode):
    """Refuses calls that would change state by the batch, before they run."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {p: name for name, p in model.named_parameters()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            raise UnsupportedError(_BACKWARD)
        if func in (F.embedding, F.embedding_bag):
            given = inspect.signature(func).bind(*args, **kwargs).arguments
            for option in ("max_norm", "scale_grad_by_freq"):
                if given.get(option) and (option == "max_norm" or given["weight"].requires_grad):
                    name = self.names.get(given["weight"], "a weight")
                    raise UnsupportedError(
                        f"{name!r} is an embedding with {option}, which makes an example's gradient depend "
                        f"on the other examples. Make it without {option}."
                    )
        if func is F.batch_norm:
            given = inspect.signature(func).bind(*args, **kwargs).arguments
            if given.get("training") or given.get("running_mean") is None:
                weights = [w for w in (given.get("weight"), given.get("bias")) if w in self.names]
                names = ", ".join(repr(self.names[w]) for w in weights) or "A layer without parameters"
                raise UnsupportedError(
                    f"{names} takes part in batch_norm, which mixes the examples of a batch. Replace it by "
                    "GroupNorm, LayerNorm or InstanceNorm, or freeze its statistics with .eval()."
                )
        return func(*args, **kwargs)


_BACKWARD = (
    "loss(model, batch) differentiates the model itself with .backward(), which leaves gradients without "
    "noise. Return the losses: each step differentiates them, example by example."
)

_MIXED = (
    "loss(model, batch) mixes the examples of a batch, so that no clipping bounds one example's influence. "
    "Make each loss a function of its own example: no statistics over the batch, no in-batch negatives, "
    "and the example axis first in every tensor."
)


def _example(sample: Any, i: int) -> Any:
    return map_tensors(lambda x: x[i : i + 1], sample)


@contextmanager
def _evaluation(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Puts some modules into evaluation mode, and restores the mode of each."""
    was = [(module, module.training) for module in modules]
    try:
        for module, _ in was:
            module.training = False
        yield
    finally:
        for module, training in was:
            module.training = training


@contextmanager
def unchanged_generator() -> Iterator[None]:
    """Leaves torch's global generator as it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
