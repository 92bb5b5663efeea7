"""Follows the weights through a model's forward, by function, and records what each took part in.

A `TorchFunctionMode` sees every call of a torch function while the user's model runs. A call in which a
trainable weight meets data is replaced by one of `adamas.engines.functions` with the same value, which leaves
a record in the backward. A call on weights alone makes a *derived* weight (a standardised or normalised one),
which is followed like the others. Whatever else a weight takes part in goes through one general path
(`adamas.engines.general`). What cannot be followed is refused by name.
"""

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines import uses
from adamas.engines.tracking import Tracker, tensors_in
from adamas.engines.uses import bound
from adamas.errors import UnsupportedError

_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "true_divide", "rsub", "where", "maximum", "minimum", "lerp", "addcmul"),
    *("pow", "multiply", "subtract", "divide", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__"),
    *("__rmul__", "__truediv__", "__rtruediv__", "__rdiv__", "__pow__", "__rpow__"),
}
_READS = {
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero"),
    *("argwhere", "unique", "masked_select", "equal", "allclose", "is_nonzero"),
}
# Modules that ask only whether a shortcut applies, such as no mask where no token is masked. The answer is
# no, which never depends on the batch and gives the same result.
_SHORTCUTS = {"transformers.masking_utils"}
_IN_PLACE: dict[str, Any] = {
    **{f"{name}_": getattr(torch, name) for name in ("add", "sub", "mul", "div", "lerp", "addcmul")},
    **{"__iadd__": torch.add, "__isub__": torch.sub, "__imul__": torch.mul},
    **{"__itruediv__": torch.div, "__idiv__": torch.div},
}
_MATMULS = {"matmul", "__matmul__", "mm"}
_EXPANSIONS = {"expand", "expand_as", "broadcast_to"}
_FUSED_RNNS: dict[Any, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
_RNN_CELLS: dict[Any, str] = {
    torch.lstm_cell: "lstm",
    torch.gru_cell: "gru",
    torch.rnn_tanh_cell: "rnn_tanh",
    torch.rnn_relu_cell: "rnn_relu",
}


class Recorder(Tracker):
    """Active while the model runs: swaps calls, and differentiates."""

    # --- the backward ---------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *, keep_graph: bool = False) -> None:
        """Differentiates, with the recorder active (checkpointing runs forwards again meanwhile)."""
        leaves = [*self.names, *(x for x in self.inputs if x.is_leaf and x.requires_grad)]
        before = [p.grad for p in leaves]
        self.in_backward = True
        try:
            for p in self.names:
                p.grad = None
            with self:
                torch.autograd.graph._engine_run_backward(
                    (loss,),
                    (torch.ones_like(loss),),
                    keep_graph,
                    False,
                    (),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
            leaks = [name for p, name in self.names.items() if p.grad is not None]
        finally:
            for p, gradient in zip(leaves, before, strict=True):
                p.grad = gradient
        if leaks:  # a gradient came to a parameter on a path that left no record
            raise UnsupportedError(
                f"engine='bookkeeping' cannot follow the parameter {leaks[0]!r} to the loss. Use "
                "engine='vmap' or engine='loop'."
            )

    # --- interception ---------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        name = getattr(func, "__name__", "")
        with_data = any(map(self.is_data, tensors))
        reads = name in _READS or (
            name == "__getitem__" and any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1:]))
        )
        if not self.in_backward and reads and with_data:
            if func is Tensor.__bool__ and sys._getframe(1).f_globals.get("__name__") in _SHORTCUTS:
                return False
            raise UnsupportedError(
                f"The forward reads values of the batch with {func.__name__}, so that one example can change "
                "the course of the others, which no clipping bounds. Use tensor functions such as "
                "torch.where, or engine='loop'."
            )
        if torch.is_grad_enabled() and any(id(t) in self.tracked for t in tensors):
            result = self._intercept(func, args, kwargs, with_data)
        else:
            result = func(*args, **kwargs)
        if with_data:
            self._mark(name, args, result)
        return result

    def _mark(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        for t in tensors_in(result):
            if id(t) not in self.tracked and not t.requires_grad:  # those that do are data anyway
                self.data[t] = True
        if args and isinstance(args[0], Tensor) and (name == "__setitem__" or name.endswith("_")):
            self.data[args[0]] = True

    def _intercept(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], with_data: bool) -> Any:
        name = getattr(func, "__name__", str(func))
        if func is F.multi_head_attention_forward:
            with self:
                return _undispatched(func)(*args, **kwargs)
        if name in ("__get__", "size", "dim", "numel", "__len__", "is_floating_point", "requires_grad_"):
            result = func(*args, **kwargs)
            return self._derived(result) if any(True for _ in tensors_in(result)) else result
        if not with_data:
            result = func(*args, **kwargs)
            if name in _EXPANSIONS and self.is_tracked(args[0]):
                if uses.over_examples(self, "expand", args[0], result):
                    return uses.expanded(self, args[0], result.shape)
            elif func is F.embedding:
                _, w = bound(("input", "weight"), args, kwargs)
                if self.is_tracked(w) and uses.over_examples(self, "fixed embedding", w, result):
                    result = uses.embedding(self, func, args, kwargs, "fixed embedding")
                    self.data[result] = True
                    return result
            return self._derived(result)
        plain = _IN_PLACE.get(name)
        if plain is not None and self.is_data(args[0]):
            with self:
                out = plain(args[0].clone(), *args[1:], **kwargs)
            return args[0].copy_(out)
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            raise UnsupportedError(
                f"{self.names_in(args, kwargs)} takes part in {name}, which works in place. Use the "
                "function that returns a new tensor."
            )
        if func is F.linear:
            x, w, b = bound(("input", "weight", "bias"), args, kwargs)
            if self.clean(x, w, b):
                return uses.linear(self, x, w, b)
        elif name in _MATMULS and not kwargs and self._is_matrix(args[1]) and self.clean(*args):
            return uses.linear(self, args[0], args[1], None, transposed=True)
        elif (
            name == "addmm"
            and not kwargs
            and args[0].shape == args[2].shape[1:]
            and self.clean(args[1], args[2], args[0])
        ):
            return uses.linear(self, args[1], args[2], args[0], transposed=True)
        elif func in uses.CONVOLUTIONS:
            return uses.convolution(self, func, args, kwargs)
        elif func is F.embedding:
            return uses.embedding(self, func, args, kwargs)
        elif func is F.layer_norm:
            x, shape, w, b, eps = bound(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
            if self.clean(x, w, b):
                return uses.layer_norm(self, x, list(shape), w, b, 1e-5 if eps is None else eps)
        elif func is F.group_norm:
            x, groups, w, b, eps = bound(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
            if self.clean(x, w, b):
                return uses.group_norm(self, x, groups, w, b, 1e-5 if eps is None else eps)
        elif func is F.instance_norm:
            names = (
                "input",
                "running_mean",
                "running_var",
                "weight",
                "bias",
                "use_input_stats",
                "momentum",
                "eps",
            )
            x, mean, _, w, b, own, _, eps = bound(names, args, kwargs)
            if mean is None and own is not False and self.clean(x, w, b):
                return uses.group_norm(self, x, x.shape[1], w, b, 1e-5 if eps is None else eps)
        elif func is F.rms_norm:
            x, shape, w, eps = bound(("input", "normalized_shape", "weight", "eps"), args, kwargs)
            if self.clean(x, w):
                return uses.elementwise(self, torch.mul, (F.rms_norm(x, shape, None, eps), w), {})
        elif func is F.batch_norm:
            return uses.batch_norm(self, args, kwargs)
        elif name == "prelu":
            x, w = bound(("input", "weight"), args, kwargs)
            with self:
                slope = w.view(1, -1, *[1] * (x.dim() - 2)) if w.numel() > 1 else w
                return torch.where(x > 0, x, x * slope)
        elif func in _RNN_CELLS:
            return uses.rnn_cell(self, _RNN_CELLS[func], *args)
        elif func in _FUSED_RNNS and isinstance(args[2], list | tuple) and isinstance(args[3], bool):
            return uses.rnn(self, _FUSED_RNNS[func], *args)
        elif name in _ELEMENTWISE:
            return uses.elementwise(self, func, args, kwargs)
        return uses.general(self, func, args, kwargs)

    def _is_matrix(self, t: Any) -> bool:
        return self.is_tracked(t) and t.dim() == 2

    def _derived(self, result: Any) -> Any:
        """A function of weights alone: autograd keeps it, and its uses are followed."""
        for t in tensors_in(result):
            if t.requires_grad:
                self.tracked[id(t)] = t
        return result


def _undispatched(func: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function of torch without its first look for modes, so that the calls in its body are seen."""
    space = dict(func.__globals__)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        space[name] = lambda *_: False
    copy = types.FunctionType(func.__code__, space, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
