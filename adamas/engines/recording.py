"""Follows the weights through a model's forward, by function, and records what each took part in.

A `TorchFunctionMode` sees every call of a torch function while the user's model runs. A call in which a
trainable weight meets data is replaced by one of `adamas.engines.functions` with the same value, which leaves
a record in the backward. A call on weights alone makes a *derived* weight (a standardised or normalised one),
which is followed like the others. Whatever else a weight takes part in goes through one general path: a copy
of the weight for each example, and `vmap` over that one function. What cannot be followed is refused by name.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from adamas._numerics import squared_norms
from adamas.engines import functions, recurrent
from adamas.engines.layouts import Key, Layouts, Workspace, by_example
from adamas.engines.records import Convolution, Dense, Lookup, Outer, Record
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry

# Numbers of per-example gradients that one step may keep for its sum (1 GB of float32 at the most).
_KEPT = 1 << 28

_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "true_divide", "rsub", "where", "maximum", "minimum", "lerp", "addcmul"),
    *("pow", "multiply", "subtract", "divide", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__"),
    *("__rmul__", "__truediv__", "__rtruediv__", "__rdiv__", "__pow__", "__rpow__"),
}
_CONVOLUTIONS: dict[Any, int] = {
    F.conv1d: 1,
    F.conv2d: 2,
    F.conv3d: 3,
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}
_READS = {
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero"),
    *("argwhere", "unique", "masked_select", "equal", "allclose", "is_nonzero"),
}
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


class Recorder(TorchFunctionMode):
    """Active while the model runs; afterwards `uses` holds the records of every weight.

    Args:
        names: The trainable parameters and their names.
        inputs: The tensors of the batch.
        n: Number of examples.
        workspace: Layouts and buffers of the model.
        geometry: The geometry in which norms will be asked, so that some can be taken on the way; None
            while the model is probed for where its examples are.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        inputs: list[Tensor],
        n: int,
        workspace: Workspace,
        geometry: Geometry | None = None,
    ) -> None:
        super().__init__()
        self.names, self.n, self.workspace, self.geometry = names, n, workspace, geometry
        self.uses: dict[int, tuple[Tensor, list[Record]]] = {}
        self.layouts = Layouts(workspace, n, probing=geometry is None)
        self._anchor = torch.zeros((), requires_grad=True, device=next(iter(names)).device)
        self._tracked: dict[int, Tensor] = {id(p): p for p in names}
        self._data: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.inputs = inputs
        for x in inputs:
            self._data[x] = True
        self._backward = False
        self._kept = 0
        self._seen: dict[Key, int] = {}

    # --- the backward ---------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *, keep_graph: bool = False) -> None:
        """Differentiates, with the recorder active (checkpointing runs forwards again meanwhile)."""
        leaves = [*self.names, *(x for x in self.inputs if x.is_leaf and x.requires_grad)]
        before = [p.grad for p in leaves]
        self._backward = True
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
        tensors = list(_tensors((args, kwargs)))
        reads = getattr(func, "__name__", "") in _READS or (
            getattr(func, "__name__", "") == "__getitem__"
            and any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1:]))
        )
        if not self._backward and reads and any(t in self._data for t in tensors):
            raise UnsupportedError(
                f"The forward reads values of the batch with {func.__name__}, so that one example can change "
                "the course of the others, which no clipping bounds. Use tensor functions such as "
                "torch.where, or engine='loop'."
            )
        if torch.is_grad_enabled() and any(id(t) in self._tracked for t in tensors):
            result = self._intercept(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if any(t in self._data for t in tensors):
            self._mark(func, args, result)
        return result

    def _mark(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        for t in _tensors(result):
            if id(t) not in self._tracked:
                self._data[t] = True
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], Tensor) and (name == "__setitem__" or name.endswith("_")):
            self._data[args[0]] = True

    def _intercept(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", str(func))
        if func is F.multi_head_attention_forward:
            with self:
                return _undispatched(func)(*args, **kwargs)
        if name in ("__get__", "size", "dim", "numel", "__len__", "is_floating_point", "requires_grad_"):
            result = func(*args, **kwargs)
            return self._derived(result) if any(True for _ in _tensors(result)) else result
        if not any(self._is_data(t) for t in _tensors((args, kwargs))):
            result = func(*args, **kwargs)
            if name in _EXPANSIONS and self._is_tracked(args[0]) and self._over_examples(args[0], result):
                return self._expanded(args[0], result.shape)
            return self._derived(result)
        plain = _IN_PLACE.get(name)
        if plain is not None and self._is_data(args[0]):
            with self:
                out = plain(args[0].clone(), *args[1:], **kwargs)
            return args[0].copy_(out)
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            raise UnsupportedError(
                f"{self._names_in(args, kwargs)} takes part in {name}, which works in place. Use the "
                "function that returns a new tensor."
            )
        if func is F.linear:
            x, w, b = _bound(("input", "weight", "bias"), args, kwargs)
            if self._clean(x, w, b):
                return self._linear(x, w, b)
        elif name in _MATMULS and not kwargs and self._is_matrix(args[1]) and self._clean(*args):
            return self._linear(args[0], args[1], None, transposed=True)
        elif (
            name == "addmm"
            and not kwargs
            and self._is_tracked(args[2])
            and args[0].shape == args[2].shape[1:]
            and self._clean(args[1], args[2], args[0])
        ):
            return self._linear(args[1], args[2], args[0], transposed=True)
        elif func in _CONVOLUTIONS:
            return self._convolution(func, args, kwargs)
        elif func is F.embedding:
            return self._embedding(func, args, kwargs)
        elif func is F.layer_norm:
            x, shape, w, b, eps = _bound(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
            if self._clean(x, w, b):
                return self._layer_norm(x, list(shape), w, b, 1e-5 if eps is None else eps)
        elif func is F.group_norm:
            x, groups, w, b, eps = _bound(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
            if self._clean(x, w, b):
                return self._group_norm(x, groups, w, b, 1e-5 if eps is None else eps)
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
            x, mean, _, w, b, own, _, eps = _bound(names, args, kwargs)
            if mean is None and own is not False and self._clean(x, w, b):
                return self._group_norm(x, x.shape[1], w, b, 1e-5 if eps is None else eps)
        elif func is F.rms_norm:
            x, shape, w, eps = _bound(("input", "normalized_shape", "weight", "eps"), args, kwargs)
            if self._clean(x, w):
                return self._elementwise(torch.mul, (F.rms_norm(x, shape, None, eps), w), {})
        elif func is F.batch_norm:
            return self._batch_norm(args, kwargs)
        elif name == "prelu":
            x, w = _bound(("input", "weight"), args, kwargs)
            with self:
                slope = w.view(1, -1, *[1] * (x.dim() - 2)) if w.numel() > 1 else w
                return torch.where(x > 0, x, x * slope)
        elif func in _RNN_CELLS:
            return self._cell(_RNN_CELLS[func], *args)
        elif func in _FUSED_RNNS and isinstance(args[2], list | tuple) and isinstance(args[3], bool):
            return self._rnn(_FUSED_RNNS[func], *args)
        elif name in _ELEMENTWISE:
            return self._elementwise(func, args, kwargs)
        return self._general(func, args, kwargs)

    def _is_tracked(self, t: Any) -> bool:
        return isinstance(t, Tensor) and id(t) in self._tracked

    def _is_matrix(self, t: Any) -> bool:
        return self._is_tracked(t) and t.dim() == 2

    def _is_data(self, t: Tensor) -> bool:
        """Whether a tensor may hold something that differs from example to example."""
        return id(t) not in self._tracked and (t in self._data or t.requires_grad)

    def _clean(self, x: Tensor, *weights: Tensor | None) -> bool:
        """The input is data, and every weight is followed or a constant: the fast formulas apply."""
        return self._is_data(x) and all(w is None or not self._is_data(w) for w in weights)

    def _names_in(self, *values: Any) -> str:
        found = [repr(self._name(t)) for t in _tensors(values) if self._is_tracked(t)]
        return ", ".join(dict.fromkeys(found))

    def _name(self, t: Tensor) -> str:
        return self.names.get(t) or f"a weight of shape {tuple(t.shape)} derived from parameters"

    def _derived(self, result: Any) -> Any:
        """A function of weights alone: autograd keeps it, and its uses are followed."""
        for t in _tensors(result):
            if t.requires_grad:
                self._tracked[id(t)] = t
        return result

    # --- where the examples are -----------------------------------------------------------------------

    def _key(self, function: str, *weights: Tensor | None, dim: int) -> Key:
        names = [self._name(w) for w in weights if w is not None and self._is_tracked(w)]
        return "+".join(names), function, dim

    def _outside(self) -> bool:
        """Whether a backward runs that is not ours, such as an adversarial step: it leaves no records."""
        if not self._backward and torch.is_grad_enabled():
            raise UnsupportedError(
                "The loss differentiates its own gradient. Use engine='vmap' or engine='loop'."
            )
        return not self._backward

    def _add(self, weight: Tensor, record: Record) -> None:
        self.uses.setdefault(id(weight), (weight, []))[1].append(record)

    # --- one method per function ----------------------------------------------------------------------

    def _linear(self, x: Tensor, w: Tensor, b: Tensor | None, transposed: bool = False) -> Tensor:
        key = self._key("linear", w, b, dim=x.dim())

        def put(x: Tensor, e: Tensor) -> None:
            if self._outside():
                return
            layout = self.layouts.find(key, e, 1)
            if layout is None:
                return
            a, e = (by_example(_wide(t), layout, self.n, 1) for t in (x, e))
            if self._is_tracked(b):
                assert b is not None
                self._add(b, Dense(e.sum(1) if e.shape[1] > 1 else e[:, 0]))
            if self._is_tracked(w):
                self._add(w, self._eager(Outer(a, e, transposed), w, key))

        weight = w.detach().t() if transposed else w.detach()
        if x.dim() == 1:
            raise UnsupportedError(f"{self._name(w)!r} meets an input without an example axis.")
        result: Tensor = _apply(functions.Linear, x, weight, _detached(b), self._anchor, put)
        return result

    def _convolution(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        axes = _CONVOLUTIONS[func]
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        x, w, b, stride, padding, dilation, groups = _bound(names, args, kwargs)
        if not self._clean(x, w, b) or x.dim() != axes + 2:
            return self._general(func, args, kwargs)
        stride, dilation = _each(stride, axes, 1), _each(dilation, axes, 1)
        groups = 1 if groups is None else groups
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
            if any(t % 2 for t in total):
                x = F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
                total = [0] * axes
            padding = [t // 2 for t in total]
        padding = [0] * axes if padding == "valid" else _each(padding, axes, 0)
        key = self._key("convolution", w, b, dim=x.dim())

        def put(x: Tensor, e: Tensor) -> None:
            if self._outside():
                return
            if self.layouts.find(key, e, e.dim() - 1, first_axis_only=True) is None:
                return
            x, e = _wide(x), _wide(e)
            if self._is_tracked(b):
                self._add(b, Dense(e.flatten(2).sum(2)))
            if self._is_tracked(w):
                record = Convolution(x, e, w.shape, stride, padding, dilation, groups)
                self._add(w, self._eager(record, w, key))

        settings = (stride, padding, dilation, groups)
        return _apply(functions.Convolve, x, w.detach(), _detached(b), self._anchor, settings, put)

    def _eager(self, record: Outer | Convolution, w: Tensor, key: Key) -> Record:
        """Materializes now, while the output gradient is in the cache, where it takes materializing."""
        assert self.geometry is not None
        known = w in self.names
        full = known and isinstance(self.geometry.scale[w], Tensor)
        if isinstance(record, Outer):
            cheap = record.places == 1 or (record.gram_pays() and not full)
        else:
            cheap = record.gram_pays() and not full
        if (known and cheap) or self._kept + self.n * w.numel() > _KEPT:
            return record
        self._kept += self.n * w.numel()
        buffer = self._buffer(key, (self.n, *w.shape), record.materialize(slice(0, 0)))
        squares = torch.empty(self.n, dtype=torch.float64, device=w.device)
        step = record.chunk()
        for i in range(0, self.n, step):
            rows = slice(i, i + step)
            part = record.materialize_into(buffer[rows], rows)
            if known:
                s, c = self.geometry.scale[w], self.geometry.center_of(w)
                if c is None and not isinstance(s, Tensor):
                    squares[rows] = squared_norms(part) / s / s
                else:
                    squares[rows] = squared_norms(self.geometry.whiten(w, part))
        return Dense(buffer, squares if known else None)

    def _buffer(self, key: Key, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that lives as long as the model; a use within a step has its own."""
        place = self._seen[key] = self._seen.get(key, -1) + 1
        held = self.workspace.buffers.get((key, place))
        if (
            held is None
            or held.shape[0] < shape[0]
            or held.shape[1:] != shape[1:]
            or held.dtype != like.dtype
        ):
            held = self.workspace.buffers[(key, place)] = torch.empty(
                shape, dtype=like.dtype, device=like.device
            )
        return held[: shape[0]]

    def _embedding(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        indices, w, padding, max_norm, _, by_frequency, _ = _bound(names, args, kwargs)
        if max_norm is not None or by_frequency:
            option = "max_norm" if max_norm is not None else "scale_grad_by_freq"
            raise UnsupportedError(
                f"{self._name(w)!r} is an embedding with {option}, which makes an example's gradient depend "
                f"on the other examples. Make it without {option}."
            )
        if not self._is_tracked(w):
            return self._general(func, args, kwargs)
        padding = padding + w.shape[0] if padding is not None and padding < 0 else padding
        key = self._key("embedding", w, dim=indices.dim() + 1)

        def put(indices: Tensor, e: Tensor) -> None:
            if self._outside():
                return
            layout = self.layouts.find(key, e, 1)
            if layout is not None:
                places = by_example(indices.unsqueeze(-1), layout, self.n, 1).squeeze(2)
                gradients = by_example(_wide(e), layout, self.n, 1)
                self._add(w, Lookup(places, gradients, w.shape[0], padding))

        return _apply(functions.Embed, w.detach(), indices, self._anchor, put)

    def _layer_norm(self, x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None, eps: float) -> Any:
        if torch.is_autocast_enabled(x.device.type):
            x = x.float()
        key = self._key("layer_norm", w, b, dim=x.dim())

        def examples(e: Tensor) -> int:
            if (
                self._backward
                and not self.layouts.probing
                and self.layouts.find(key, e, len(shape)) in ("axis0", "flat")
            ):
                return self.n
            return 0

        def put(
            normalised: Tensor | None, e: Tensor | None, gw: Tensor | None = None, gb: Tensor | None = None
        ) -> None:
            if self._outside():
                return
            if normalised is not None and e is not None:
                layout = self.layouts.find(key, e, len(shape))
                if layout is None:
                    return
                parts = [by_example(t, layout, self.n, len(shape)) for t in (normalised, e)]
                gw, gb = (parts[0] * parts[1]).sum(1), parts[1].sum(1)
            for weight, gradient in ((w, gw), (b, gb)):
                if weight is not None and self._is_tracked(weight) and gradient is not None:
                    self._add(weight, Dense(_wide(gradient)))

        return _apply(
            functions.LayerNorm, x, shape, _detached(w), _detached(b), eps, self._anchor, examples, put
        )

    def _group_norm(self, x: Tensor, groups: int, w: Tensor | None, b: Tensor | None, eps: float) -> Any:
        if torch.is_autocast_enabled(x.device.type):
            x = x.float()
        key = self._key("group_norm", w, b, dim=x.dim())
        if x.shape[0] != self.n:
            raise UnsupportedError(
                f"The input of the group_norm of {self._names_in(w, b)} is not batch-first."
            )

        def put(gw: Tensor | None, gb: Tensor | None) -> None:
            if self._outside():
                return
            for weight, gradient in ((w, gw), (b, gb)):
                if weight is None or gradient is None or not self._is_tracked(weight):
                    continue
                if self.layouts.find(key, gradient, 1, first_axis_only=True) is not None:
                    self._add(weight, Dense(_wide(gradient)))

        return _apply(functions.GroupNorm, x, groups, _detached(w), _detached(b), eps, self._anchor, put)

    def _batch_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        x, mean, variance, w, b, training, _, eps = _bound(names, args, kwargs)
        if training or mean is None:
            raise UnsupportedError(
                f"{self._names_in(args, kwargs)} takes part in batch_norm, which mixes the examples of a "
                "batch. Replace it by GroupNorm, LayerNorm or InstanceNorm, or freeze its statistics with "
                ".eval()."
            )
        y = F.batch_norm(x, mean, variance, None, None, False, 0.0, 1e-5 if eps is None else eps)
        self._data[y] = True
        with self:
            y = y if w is None else y * w.view(1, -1, *[1] * (x.dim() - 2))
            return y if b is None else y + b.view(1, -1, *[1] * (x.dim() - 2))

    def _cell(self, kind: str, x: Tensor, state: Any, wx: Tensor, wh: Tensor, *biases: Tensor) -> Any:
        states = list(state) if isinstance(state, tuple | list) else [state]
        bx, bh = biases or (None, None)
        for s in states:
            self._data[s] = True
        with self:
            new = recurrent.cell(kind, F.linear(x, wx, bx), F.linear(states[0], wh, bh), states)
        return tuple(new) if kind == "lstm" else new[0]

    def _rnn(
        self,
        kind: str,
        x: Tensor,
        state: Any,
        weights: list[Tensor],
        bias: bool,
        count: int,
        dropout: float,
        training: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if dropout and training and count > 1:
            raise UnsupportedError(
                f"{self._names_in(weights)} belongs to a recurrent layer with dropout between its layers, "
                "whose masks cannot be replayed. Use single layers with nn.Dropout between them."
            )
        states = list(state) if isinstance(state, tuple | list) else [state]
        if len(weights) != (4 if bias else 2) * count * (2 if bidirectional else 1):
            raise UnsupportedError(
                f"{self._names_in(weights)} belongs to an LSTM with projections. Use engine='loop'."
            )
        for s in states:
            self._data[s] = True
        with self:
            return recurrent.layers(
                kind,
                x,
                states,
                weights,
                bias=bias,
                count=count,
                bidirectional=bidirectional,
                batch_first=batch_first,
            )

    def _copies(self, p: Tensor, shape: tuple[int, ...], key: Key) -> Tensor:
        """A copy of a weight for each example, of a shape that broadcasts with one example's data."""

        def put(gradients: Tensor) -> None:
            if self._outside():
                return
            if self.layouts.find(key, gradients, p.dim(), first_axis_only=True) is not None:
                self._add(p, Dense(_wide(gradients)))

        result: Tensor = _apply(functions.Expand, p.detach(), self._anchor, self.n, shape, put)
        return result

    def _over_examples(self, p: Tensor, result: Tensor) -> bool:
        """Whether an expansion runs over the examples, as of a class token; the probe's verdict holds."""
        new_axis = p.dim() < result.dim() or p.shape[0] == 1
        fits = result.dim() > 0 and result.shape[0] == self.n and new_axis
        key = self._expansion_key(p, result.dim())
        known = key in self.workspace.layouts or key in self.workspace.open
        return fits and key not in self.workspace.constant and (self.layouts.probing or self.n == 1 or known)

    def _expansion_key(self, p: Tensor, dim: int) -> Key:
        return self._key("expand", p, dim=dim)

    def _expanded(self, p: Tensor, shape: torch.Size) -> Tensor:
        own = tuple(p.shape[1:] if p.dim() == len(shape) else p.shape)
        own = (1,) * (len(shape) - 1 - len(own)) + own
        result = self._copies(p, own, self._expansion_key(p, len(shape))).expand(shape)
        self._data[result] = True
        return result

    def _elementwise(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A weight that is added, multiplied and so on: its copies broadcast like the weight."""
        tensors = list(_tensors((args, kwargs)))
        axes = max(t.dim() for t in tensors)
        batched = [t for t in tensors if self._is_data(t) and t.dim() == axes and t.shape[0] == self.n]
        weights = [t for t in tensors if self._is_tracked(t)]
        spread = [t for t in weights if t.dim() == axes and t.shape[0] != 1]
        key = self._key(getattr(func, "__name__", str(func)), *weights, dim=axes)
        if not batched or (spread and self.n > 1):
            raise UnsupportedError(
                f"{self._names_in(weights)} takes part in {key[1]} with data that has its examples on "
                "another axis than the first. Put the example axis first, or use engine='vmap'."
            )

        def copies(value: Any) -> Any:
            if not self._is_tracked(value):
                return value
            shape = tuple(value.shape[1:] if value.dim() == axes else value.shape)
            return self._copies(value, (1,) * (axes - 1 - len(shape)) + shape, key)

        return func(*map(copies, args), **{name: copies(value) for name, value in kwargs.items()})

    def _general(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any other function: a copy of the weight for each example, and vmap over this one call."""
        name = getattr(func, "__name__", str(func))
        flat, tree = tree_flatten((args, kwargs))
        places = [i for i, value in enumerate(flat) if isinstance(value, Tensor)]
        values: list[Tensor] = []
        axes: list[int | None] = []
        batched: list[bool] = []
        for i in places:
            t = flat[i]
            if self._is_tracked(t):
                key = self._key(name, t, dim=t.dim() + 1)
                values.append(self._copies(t, tuple(t.shape), key))
                axes.append(0)
                batched.append(False)
            else:
                with_examples = self._is_data(t) and t.dim() > 0 and t.shape[0] == self.n
                values.append(t)
                axes.append(0 if with_examples else None)
                batched.append(with_examples)

        def one(*tensors: Tensor) -> Tensor:
            leaves = list(flat)
            for i, t, row in zip(places, tensors, batched, strict=True):
                leaves[i] = t.unsqueeze(0) if row else t
            one_args, one_kwargs = tree_unflatten(leaves, tree)
            return func(*one_args, **one_kwargs)[0]  # type: ignore[no-any-return]

        with torch.no_grad():
            expected = func(*args, **kwargs)
        problem = "it does not return one tensor with the examples first"
        if isinstance(expected, Tensor) and expected.dim() and expected.shape[0] == self.n:
            try:
                result = torch.func.vmap(one, in_dims=tuple(axes))(*values)
            except RuntimeError as error:
                problem = str(error).splitlines()[0]
            else:
                if result.shape == expected.shape and torch.allclose(
                    result, expected, rtol=1e-3, atol=1e-4, equal_nan=True
                ):
                    return result
                problem = "its result differs when it is applied example by example"
        raise UnsupportedError(
            f"engine='bookkeeping' cannot follow {self._names_in(args, kwargs)} through {name}: {problem}. "
            "Use engine='vmap' or engine='loop'."
        )


def _apply(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t


def _detached(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.detach()


def _each(value: Any, axes: int, default: int) -> list[int]:
    if value is None:
        value = default
    return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)


def _bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of their names, None for those that were not given."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _undispatched(func: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function of torch without its first look for modes, so that the calls in its body are seen."""
    space = dict(func.__globals__)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        space[name] = lambda *_: False
    copy = types.FunctionType(func.__code__, space, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
