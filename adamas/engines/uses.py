"""What happens at each kind of call in which a weight meets data: the call's stand-in, and its record.

Every function takes the recorder and the call's arguments, returns the call's value, and leaves a record of
the weight in the backward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten

from adamas.engines import functions, recurrent
from adamas.engines.convolution import Convolution
from adamas.engines.derived import leaves_of
from adamas.engines.general import Call, General
from adamas.engines.layouts import Key, by_example
from adamas.engines.lookup import Lookup
from adamas.engines.measured import measured, row_map_of
from adamas.engines.outer import Outer
from adamas.engines.records import Dense
from adamas.engines.tracking import Tracker, tensors_in
from adamas.errors import UnsupportedError

# How many axes of an image each convolution runs over.
CONVOLUTIONS: dict[Any, int] = {
    F.conv1d: 1,
    F.conv2d: 2,
    F.conv3d: 3,
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}


def linear(recorder: Tracker, x: Tensor, w: Tensor, b: Tensor | None, transposed: bool = False) -> Tensor:
    """`x @ w.T + b`, over any leading axes."""
    key = recorder.key("linear", w, b, dim=x.dim())
    row_map = None if transposed else row_map_of(recorder, w)

    def put(x: Tensor, e: Tensor, y: Tensor | None) -> None:
        if recorder.outside():
            return
        layout = recorder.layouts.find(key, e, 1)
        if layout is None:
            return
        a, e = (by_example(_wide(t), layout, recorder.n, 1) for t in (x, e))
        bias = None
        if recorder.is_tracked(b):
            assert b is not None
            bias = Dense(e.sum(1) if e.shape[1] > 1 else e[:, 0])
            recorder.add(b, bias, "linear")
        if recorder.is_tracked(w):
            if y is not None:
                y = by_example(y, layout, recorder.n, 1)
            record = Outer(a, e, transposed, bias)
            recorder.add(w, measured(recorder, record, w, row_map, y), "linear")

    weight = w.detach().t() if transposed else w.detach()
    if x.dim() == 1:
        raise UnsupportedError(f"{recorder.name(w)!r} meets an input without an example axis.")

    keeps = None if row_map is None else lambda x, y: True
    result: Tensor = _apply(functions.Linear, x, weight, _detached(b), recorder.anchor, put, keeps)
    return result


def convolution(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A convolution over one to three axes."""
    axes = CONVOLUTIONS[func]
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    x, w, b, stride, padding, dilation, groups = bound(names, args, kwargs)
    if not recorder.clean(x, w, b) or x.dim() != axes + 2:
        return general(recorder, func, args, kwargs)
    stride, dilation = _each(stride, axes, 1), _each(dilation, axes, 1)
    groups = 1 if groups is None else groups
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            x = F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
            total = [0] * axes
        padding = [t // 2 for t in total]
    padding = [0] * axes if padding == "valid" else _each(padding, axes, 0)
    if x.shape[0] != recorder.n:
        raise UnsupportedError(
            f"The input of the convolution of {recorder.names_in(w, b)} has not one image for each example. "
            "Keep the example axis first, or use engine='vmap'."
        )
    key = recorder.key("convolution", w, b, dim=x.dim())
    row_map = row_map_of(recorder, w) if groups == 1 else None

    def put(x: Tensor, e: Tensor, y: Tensor | None) -> None:
        if recorder.outside():
            return
        if recorder.layouts.find(key, e, e.dim() - 1, first_axis_only=True) is None:
            return
        x, e = _wide(x), _wide(e)
        if recorder.is_tracked(b):
            recorder.add(b, Dense(e.flatten(2).sum(2)), "convolution")
        if recorder.is_tracked(w):
            record = Convolution(x, e, w.shape, *settings)
            recorder.add(w, measured(recorder, record, w, row_map, y), "convolution")

    settings = (stride, padding, dilation, groups)
    keeps = None if row_map is None else lambda x, y: Convolution(x, y, w.shape, *settings).gram_pays()
    arguments = (x, w.detach(), _detached(b), recorder.anchor, settings, put, keeps)
    return _apply(functions.Convolve, *arguments)


def embedding(
    recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], function: str = "embedding"
) -> Any:
    """A look-up of rows."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    indices, w, padding, max_norm, _, by_frequency, _ = bound(names, args, kwargs)
    if max_norm is not None or by_frequency:
        option = "max_norm" if max_norm is not None else "scale_grad_by_freq"
        raise UnsupportedError(
            f"{recorder.name(w)!r} is an embedding with {option}, which makes an example's gradient depend "
            f"on the other examples. Make it without {option}."
        )
    if not recorder.is_tracked(w):
        return general(recorder, func, args, kwargs)
    padding = padding + w.shape[0] if padding is not None and padding < 0 else padding
    key = recorder.key(function, w, dim=indices.dim() + 1)

    def put(indices: Tensor, e: Tensor) -> None:
        if recorder.outside():
            return
        layout = recorder.layouts.find(key, e, 1)
        if layout is not None:
            places = by_example(indices.unsqueeze(-1), layout, recorder.n, 1).squeeze(2)
            gradients = by_example(_wide(e), layout, recorder.n, 1)
            recorder.add(w, Lookup(places, gradients, w.shape[0], padding), "embedding")

    return _apply(functions.Embed, w.detach(), indices, recorder.anchor, put)


def layer_norm(
    recorder: Tracker, x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None, eps: float
) -> Any:
    """Layer normalisation with a weight, a bias or both."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()
    key = recorder.key("layer_norm", w, b, dim=x.dim())

    def examples(e: Tensor) -> int:
        if (
            recorder.in_backward
            and not recorder.layouts.probing
            and recorder.layouts.find(key, e, len(shape)) in ("axis0", "flat")
        ):
            return recorder.n
        return 0

    def put(
        normalised: Tensor | None, e: Tensor | None, gw: Tensor | None = None, gb: Tensor | None = None
    ) -> None:
        if recorder.outside():
            return
        if normalised is not None and e is not None:
            layout = recorder.layouts.find(key, e, len(shape))
            if layout is None:
                return
            parts = [by_example(t, layout, recorder.n, len(shape)) for t in (normalised, e)]
            gw, gb = (parts[0] * parts[1]).sum(1), parts[1].sum(1)
        for weight, gradient in ((w, gw), (b, gb)):
            if weight is not None and recorder.is_tracked(weight) and gradient is not None:
                recorder.add(weight, Dense(_wide(gradient)), "layer_norm")

    return _apply(
        functions.LayerNorm, x, shape, _detached(w), _detached(b), eps, recorder.anchor, examples, put
    )


def group_norm(
    recorder: Tracker, x: Tensor, groups: int, w: Tensor | None, b: Tensor | None, eps: float
) -> Any:
    """Group normalisation; instance normalisation is that with a group per channel."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()
    key = recorder.key("group_norm", w, b, dim=x.dim())
    if x.shape[0] != recorder.n:
        raise UnsupportedError(
            f"The input of the group_norm of {recorder.names_in(w, b)} is not batch-first."
        )

    def put(gw: Tensor | None, gb: Tensor | None) -> None:
        if recorder.outside():
            return
        for weight, gradient in ((w, gw), (b, gb)):
            if weight is None or gradient is None or not recorder.is_tracked(weight):
                continue
            if recorder.layouts.find(key, gradient, 1, first_axis_only=True) is not None:
                recorder.add(weight, Dense(_wide(gradient)), "group_norm")

    return _apply(functions.GroupNorm, x, groups, _detached(w), _detached(b), eps, recorder.anchor, put)


def batch_norm(recorder: Tracker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Batch normalisation with frozen statistics: a product and a sum."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance, w, b, training, _, eps = bound(names, args, kwargs)
    if training or mean is None:
        raise UnsupportedError(
            f"{recorder.names_in(args, kwargs)} takes part in batch_norm, which mixes the examples of a "
            "batch. Replace it by GroupNorm, LayerNorm or InstanceNorm, or freeze its statistics with "
            ".eval()."
        )
    y = F.batch_norm(x, mean, variance, None, None, False, 0.0, 1e-5 if eps is None else eps)
    recorder.data[y] = True
    with recorder:
        y = y if w is None else y * w.view(1, -1, *[1] * (x.dim() - 2))
        return y if b is None else y + b.view(1, -1, *[1] * (x.dim() - 2))


def rnn_cell(
    recorder: Tracker, kind: str, x: Tensor, state: Any, wx: Tensor, wh: Tensor, *biases: Tensor
) -> Any:
    """One place of a recurrent layer, written out."""
    states = list(state) if isinstance(state, tuple | list) else [state]
    bx, bh = biases or (None, None)
    for s in states:
        recorder.data[s] = True
    with recorder:
        new = recurrent.cell(kind, F.linear(x, wx, bx), F.linear(states[0], wh, bh), states)
    return tuple(new) if kind == "lstm" else new[0]


def rnn(
    recorder: Tracker,
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
    """A fused recurrent module, written out."""
    if dropout and training and count > 1:
        raise UnsupportedError(
            f"{recorder.names_in(weights)} belongs to a recurrent layer with dropout between its layers, "
            "whose masks cannot be replayed. Use single layers with nn.Dropout between them."
        )
    states = list(state) if isinstance(state, tuple | list) else [state]
    if len(weights) != (4 if bias else 2) * count * (2 if bidirectional else 1):
        raise UnsupportedError(
            f"{recorder.names_in(weights)} belongs to an LSTM with projections. Use engine='loop'."
        )
    for s in states:
        recorder.data[s] = True
    with recorder:
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


def _copies(recorder: Tracker, p: Tensor, shape: tuple[int, ...], key: Key) -> Tensor:
    """A copy of a weight for each example, of a shape that broadcasts with one example's data."""

    def put(gradients: Tensor) -> None:
        if recorder.outside():
            return
        if recorder.layouts.find(key, gradients, p.dim(), first_axis_only=True) is not None:
            recorder.add(p, Dense(_wide(gradients)), key[1])

    result: Tensor = _apply(functions.Expand, p.detach(), recorder.anchor, recorder.n, shape, put)
    return result


def over_examples(recorder: Tracker, function: str, p: Tensor, result: Tensor) -> bool:
    """Whether a function of a weight and constants makes a copy for each example; the probe's verdict holds.

    An expansion does, of a class token, or a look-up of the same rows for each example.
    """
    new_axis = p.dim() < result.dim() or p.shape[0] == 1
    fits = result.dim() > 0 and result.shape[0] == recorder.n and new_axis
    key = recorder.key(function, p, dim=result.dim())
    known = key in recorder.workspace.layouts or key in recorder.workspace.open
    return (
        fits
        and key not in recorder.workspace.constant
        and (recorder.layouts.probing or recorder.n == 1 or known)
    )


def expanded(recorder: Tracker, p: Tensor, shape: torch.Size) -> Tensor:
    """An expansion over the examples: a copy for each."""
    own = tuple(p.shape[1:] if p.dim() == len(shape) else p.shape)
    own = (1,) * (len(shape) - 1 - len(own)) + own
    result = _copies(recorder, p, own, recorder.key("expand", p, dim=len(shape))).expand(shape)
    recorder.data[result] = True
    return result


def elementwise(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A weight that is added, multiplied and so on: its copies broadcast like the weight."""
    tensors = list(tensors_in((args, kwargs)))
    axes = max(t.dim() for t in tensors)
    batched = [t for t in tensors if recorder.is_data(t) and t.dim() == axes and t.shape[0] == recorder.n]
    weights = [t for t in tensors if recorder.is_tracked(t)]
    spread = [t for t in weights if t.dim() == axes and t.shape[0] != 1]
    key = recorder.key(getattr(func, "__name__", str(func)), *weights, dim=axes)
    if not batched or (spread and recorder.n > 1):
        raise UnsupportedError(
            f"{recorder.names_in(weights)} takes part in {key[1]} with data that has its examples on "
            "another axis than the first. Put the example axis first, or use engine='vmap'."
        )

    def copies(value: Any) -> Any:
        if not recorder.is_tracked(value):
            return value
        shape = tuple(value.shape[1:] if value.dim() == axes else value.shape)
        return _copies(recorder, value, (1,) * (axes - 1 - len(shape)) + shape, key)

    return func(*map(copies, args), **{name: copies(value) for name, value in kwargs.items()})


def general(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any other function of weights and data."""
    name = getattr(func, "__name__", str(func))
    flat, tree = tree_flatten((args, kwargs))
    weights, data, batched = [], [], []
    for i, value in enumerate(flat):
        if recorder.is_tracked(value):
            weights.append(i)
        elif isinstance(value, Tensor) and recorder.is_data(value):
            data.append(i)
            if value.dim() > 0 and value.shape[0] == recorder.n:
                batched.append(i)
    keys = {i: recorder.key(name, flat[i], dim=flat[i].dim() + 1) for i in weights}
    tracked = {i: flat[i] for i in weights}
    values = [_detached(value) if i in tracked else value for i, value in enumerate(flat)]
    call = Call(func, values, tree, data, batched, f"{recorder.names_in(args, kwargs)} through {name}")

    def put(call: Call, output: tuple[Tensor, dict[int, Tensor]], e: Tensor) -> None:
        if recorder.outside():
            return
        for i, weight in tracked.items():
            if not leaves_of(output[0], {output[1][i]}):  # such as `x.type_as(weight)`
                continue
            record = General(call, i, e, output)
            if recorder.layouts.probing:
                record.materialize(slice(None))  # refuses what vmap cannot do
            if recorder.layouts.find(keys[i], e, e.dim() - 1, first_axis_only=True) is not None:
                recorder.add(weight, record, name)

    result = _apply(functions.Apply, recorder.anchor, call, weights, put, *(flat[i] for i in data))
    if not isinstance(result, Tensor) or not result.dim() or result.shape[0] != recorder.n:
        call.refuse("it does not return one tensor with the examples first")
    return result


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


def bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of their names, None for those that were not given."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]
