"""What happens at each kind of call in which a weight meets data: the call's stand-in, and its record.

Every function takes the recorder and the call's arguments, returns the call's value, and leaves a record of
the weight in the backward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from adamas.engines.bookkeeping import functions, recurrent
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.counts import SIZE, Count, user_line
from adamas.engines.bookkeeping.derived import weights_of
from adamas.engines.bookkeeping.frames import Framed
from adamas.engines.bookkeeping.general import Call, General
from adamas.engines.bookkeeping.lookup import Lookup
from adamas.engines.bookkeeping.measured import measured, row_map_of
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.places import FIRST, Place, Rows, by_example, equal_along, split
from adamas.engines.bookkeeping.records import Dense
from adamas.engines.bookkeeping.separation import PACKED_SIZES, TABLE, Mark, Mixing
from adamas.engines.bookkeeping.separation import Call as Seen
from adamas.engines.bookkeeping.tracking import Tracker, tensors_in
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
    if x.dim() == 1:
        raise UnsupportedError(f"{recorder.name(w)!r} meets an input without an example axis.")
    place = recorder.place(x)
    if place.axis == x.dim() - 1:
        recorder.refuse_mixing(f"linear sums over the examples ({user_line()})")
    row_map = None if transposed else row_map_of(recorder, w)

    def put(x: Tensor, e: Tensor, y: Tensor | None) -> None:
        if recorder.outside():
            return
        a, e = (by_example(_wide(t), place, recorder.n, 1) for t in (x, e))
        bias = None
        if recorder.is_tracked(b):
            assert b is not None
            bias = Dense(e.sum(1) if e.shape[1] > 1 else e[:, 0])
            recorder.add(b, bias, "linear")
        if recorder.is_tracked(w):
            if y is not None:
                y = by_example(y, place, recorder.n, 1)
            record = Outer(a, e, transposed, bias)
            recorder.add(w, measured(recorder, record, w, row_map, y), "linear")

    weight = w.detach().t() if transposed else w.detach()
    keeps = None if row_map is None else lambda x, y: True
    result: Tensor = _apply(functions.Linear, x, weight, _detached(b), recorder.anchor, put, keeps)
    if (b is None or b.dim() == 1) and not recorder.has_numbers(x):  # all axes but the last stay
        recorder.set_mark(result, place)
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
    place = recorder.place(x)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            x = F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
            total = [0] * axes
        padding = [t // 2 for t in total]
    padding = [0] * axes if padding == "valid" else _each(padding, axes, 0)
    if place.axis:
        raise UnsupportedError(
            f"The input of the convolution of {recorder.names_in(w, b)} has its examples on another axis "
            "than the first. Put the example axis first, or use engine='vmap'."
        )
    single = place == FIRST  # one image for each example
    row_map = row_map_of(recorder, w) if groups == 1 and single else None

    def put(x: Tensor, e: Tensor, y: Tensor | None) -> None:
        if recorder.outside():
            return
        x, e = _wide(x), _wide(e)
        if recorder.is_tracked(b):
            gradients = e.flatten(2).sum(2)
            if not single:
                gradients = by_example(gradients, place, recorder.n, 1).sum(1)
            recorder.add(b, Dense(gradients), "convolution")
        if not recorder.is_tracked(w):
            return
        if single:
            record = Convolution(x, e, w.shape, *settings)
            recorder.add(w, measured(recorder, record, w, row_map, y), "convolution")
        else:
            images = by_example(x, place, recorder.n, x.dim() - 1)
            gradients = by_example(e, place, recorder.n, e.dim() - 1)
            recorder.add(w, Framed(images, gradients, w.shape, settings), "convolution")

    settings = (stride, padding, dilation, groups)
    keeps = None if row_map is None else lambda x, y: Convolution(x, y, w.shape, *settings).gram_pays()
    arguments = (x, w.detach(), _detached(b), recorder.anchor, settings, put, keeps)
    return _apply(functions.Convolve, *arguments)


def embedding(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    place = recorder.place(indices)

    def put(indices: Tensor, e: Tensor) -> None:
        if not recorder.outside():
            rows = by_example(indices.unsqueeze(-1), place, recorder.n, 1).squeeze(2)
            gradients = by_example(_wide(e), place, recorder.n, 1)
            recorder.add(w, Lookup(rows, gradients, w.shape[0], padding), "embedding")

    return _apply(functions.Embed, w.detach(), indices, recorder.anchor, put)


def layer_norm(
    recorder: Tracker, x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None, eps: float
) -> Any:
    """Layer normalisation with a weight, a bias or both."""
    place = recorder.place(x)
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()
    if place.axis >= x.dim() - len(shape):
        recorder.refuse_mixing(f"layer_norm runs along the examples ({user_line()})")
    first = place.axis == 0 and place.outer == 1 and place.rows is None

    def examples(e: Tensor) -> int:
        return recorder.n if recorder.in_backward and first else 0

    def put(
        normalised: Tensor | None, e: Tensor | None, gw: Tensor | None = None, gb: Tensor | None = None
    ) -> None:
        if recorder.outside():
            return
        if normalised is not None and e is not None:
            parts = [by_example(t, place, recorder.n, len(shape)) for t in (normalised, e)]
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
    place = recorder.place(x)
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()
    if place.axis:
        raise UnsupportedError(
            f"The input of the group_norm of {recorder.names_in(w, b)} is not batch-first."
        )

    def put(gw: Tensor | None, gb: Tensor | None) -> None:
        if recorder.outside():
            return
        for weight, gradient in ((w, gw), (b, gb)):
            if weight is None or gradient is None or not recorder.is_tracked(weight):
                continue
            if place != FIRST:
                gradient = by_example(gradient, place, recorder.n, 1).sum(1)
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
    with recorder:
        y = F.batch_norm(x, mean, variance, None, None, False, 0.0, 1e-5 if eps is None else eps)
        y = y if w is None else y * w.view(1, -1, *[1] * (x.dim() - 2))
        return y if b is None else y + b.view(1, -1, *[1] * (x.dim() - 2))


def rnn_cell(
    recorder: Tracker, kind: str, x: Tensor, state: Any, wx: Tensor, wh: Tensor, *biases: Tensor
) -> Any:
    """One place of a recurrent layer, written out."""
    states = list(state) if isinstance(state, tuple | list) else [state]
    bx, bh = biases or (None, None)
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
    _refuse_dropout(recorder, weights, dropout if training and count > 1 else 0.0)
    states = list(state) if isinstance(state, tuple | list) else [state]
    if len(weights) != (4 if bias else 2) * count * (2 if bidirectional else 1):
        raise UnsupportedError(
            f"{recorder.names_in(weights)} belongs to an LSTM with projections. Use engine='loop'."
        )
    _start_states(recorder, states, recorder.place(x)._replace(axis=0))
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


def _refuse_dropout(recorder: Tracker, weights: list[Tensor], dropout: float) -> None:
    if dropout:
        raise UnsupportedError(
            f"{recorder.names_in(weights)} belongs to a recurrent layer with dropout between its layers, "
            "whose masks cannot be replayed. Use single layers with nn.Dropout between them."
        )


def pack(recorder: Tracker, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Packs padded sequences, and notes which example each row belongs to."""
    place = recorder.place(x)
    order = place._replace(axis=0)
    axis = 0 if batch_first else 1
    own = recorder.mark(lengths)
    if place.axis != axis or place.outer * place.inner != 1 or (own is not None and own.place != order):
        recorder.refuse_mixing(f"pack_padded_sequence packs lengths of other examples ({user_line()})")
    packed, sizes = torch._VF._pack_padded_sequence(x, lengths, batch_first)
    owner = torch.arange(recorder.n) if place.rows is None else place.rows.owner
    rows = Rows(torch.cat([owner[:size] for size in sizes.tolist()]), recorder.n, chosen=True)
    recorder.packed[id(rows)] = rows, order, lengths
    recorder.set_mark(packed, Place(0, 1, 1, rows))
    recorder.set_mark(sizes, Mark(recorder.unit, None, PACKED_SIZES))
    return packed, sizes


def pad(
    recorder: Tracker, packed: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int
) -> tuple[Tensor, Tensor]:
    """Pads packed sequences."""
    _, order, _ = _unpacked(recorder, packed)
    padded, found = torch._VF._pad_packed_sequence(packed, sizes, batch_first, value, total)
    recorder.set_mark(padded, order._replace(axis=0 if batch_first else 1))
    recorder.set_mark(found, order)
    return padded, found


def _unpacked(recorder: Tracker, packed: Tensor) -> tuple[Place, Place, Tensor]:
    """The place of packed data, the order of its examples, and their lengths."""
    place = recorder.place(packed)
    known = recorder.packed.get(id(place.rows))
    if known is None or place != Place(0, 1, 1, place.rows):
        recorder.refuse_mixing(f"packed data was not packed in this step ({user_line()})")
    return place, known[1], known[2]


def _start_states(recorder: Tracker, states: list[Tensor], place: Place) -> None:
    """Marks first states that are constants, the same for each example."""
    for s in states:
        mark = None if recorder.is_tracked(s) else recorder.mark(s)
        constant = mark is None or mark.made or mark.alike
        if constant and not recorder.is_tracked(s) and equal_along(s, 1, place, recorder.n):
            recorder.set_mark(s, place._replace(axis=1))


def packed_rnn(
    recorder: Tracker,
    kind: str,
    packed: Tensor,
    sizes: Tensor,
    state: Any,
    weights: list[Tensor],
    bias: bool,
    count: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
) -> Any:
    """A fused recurrent module on packed sequences: padded, written out with frozen states, packed again."""
    _refuse_dropout(recorder, weights, dropout if training and count > 1 else 0.0)
    place, order, lengths = _unpacked(recorder, packed)
    states = list(state) if isinstance(state, tuple | list) else [state]
    padded, _ = torch._VF._pad_packed_sequence(packed, sizes, False, 0.0, int(sizes.shape[0]))
    recorder.set_mark(padded, order._replace(axis=1))
    active = [(lengths > t).unsqueeze(1) for t in range(int(sizes.shape[0]))]
    for mask in active:
        recorder.set_mark(mask, order)
    _start_states(recorder, states, order)
    with recorder:
        out, *finals = recurrent.layers(
            kind,
            padded,
            states,
            weights,
            bias=bias,
            count=count,
            bidirectional=bidirectional,
            batch_first=False,
            active=active,
        )
    again, _ = torch._VF._pack_padded_sequence(out, lengths, False)
    recorder.set_mark(again, place)
    return (again, *finals)


def _copies(recorder: Tracker, p: Tensor, shape: tuple[int, ...], function: str) -> Tensor:
    """A copy of a weight for each example, of a shape that broadcasts with one example's data."""

    def put(gradients: Tensor) -> None:
        if not recorder.outside():
            recorder.add(p, Dense(_wide(gradients)), function)

    result: Tensor = _apply(functions.Expand, p.detach(), recorder.anchor, recorder.n, shape, put)
    return result


def expanded(
    recorder: Tracker, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """A weight that is expanded or repeated over the examples: a copy for each."""
    p = args[0]
    given = kwargs.get("size", kwargs.get("repeats", args[1:]))
    sizes = list(given[0]) if len(given) == 1 and not isinstance(given[0], SIZE) else list(given)
    counts = [axis for axis, size in enumerate(sizes) if isinstance(size, Count)]
    new = len(sizes) - p.dim()
    (axis,) = counts if len(counts) == 1 else (-1,)
    own = (1,) * new + tuple(p.shape)
    count = sizes[axis]
    repeats = name == "repeat"
    if axis < 0 or count.unit is not recorder.unit or (own[axis] != 1 and not repeats):
        recorder.refuse_mixing(f"{name} spreads a weight over the examples by their position ({user_line()})")
    copies = _copies(recorder, p, own, name).movedim(0, axis)  # (..., n, own[axis], ...)
    sizes[axis] = count.times
    if repeats:
        rest = [*sizes[:axis], 1, *sizes[axis:]]
        result = copies.repeat(rest).flatten(axis, axis + 1)
        inner = count.times * own[axis]
    else:
        rest = [*sizes[:axis], recorder.n, *sizes[axis:]]
        result = copies.expand(rest).flatten(axis, axis + 1)
        inner = count.times
    recorder.set_mark(result, Place(axis, 1, inner))
    return result


def elementwise(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A weight that is added, multiplied and so on: its copies broadcast like the weight."""
    name = getattr(func, "__name__", str(func))
    tensors = tensors_in((args, kwargs))
    dim = max(t.dim() for t in tensors)
    places = {recorder.place(t).shifted(dim - t.dim()) for t in tensors if recorder.is_data(t)}
    if len(places) != 1:
        recorder.refuse_mixing(f"{name} combines each example with others ({user_line()})")
    (place,) = places
    axis = place.axis
    weights = [t for t in tensors if recorder.is_tracked(t)]
    if any(t.dim() >= dim - axis and t.shape[axis - dim] != 1 for t in weights):
        raise UnsupportedError(
            f"{recorder.names_in(weights)} takes part in {name} with data, and is as long as the batch. Give "
            "it one entry on the example axis, or use engine='vmap'."
        )
    simple = place == FIRST

    def arranged(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if recorder.is_tracked(value):
            shape = (1,) * (dim - value.dim()) + tuple(value.shape)
            own = shape[:axis] + shape[axis + 1 :]
            if simple:
                return _copies(recorder, value, own, name)
            spread = (*shape[:axis], 1, 1, *shape[axis + 1 :])  # beside outer and inner, without the examples
            copies = _copies(recorder, value, spread, name)
            if place.rows is not None:
                copies = copies.index_select(0, place.rows.owner)
            return copies.movedim(0, axis + 1)
        if simple:
            return value
        value = value.reshape((1,) * (dim - value.dim()) + tuple(value.shape))
        if value.shape[axis] == 1:
            return value.unsqueeze(axis).unsqueeze(axis)
        return split(value, place, recorder.n)

    result = func(*map(arranged, args), **{key: arranged(value) for key, value in kwargs.items()})
    return result if simple else result.flatten(axis, axis + 2)


def attention(recorder: Tracker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention with a learned bias as its mask: a copy of the bias for each example."""
    given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
    mask, dim = given["attn_mask"], given["query"].dim()
    places = {
        recorder.place(t).shifted(dim - t.dim()) for t in list(given.values())[:3] if recorder.is_data(t)
    }
    if len(places) != 1:
        recorder.refuse_mixing(
            f"scaled_dot_product_attention combines each example with others ({user_line()})"
        )
    (place,) = places
    shape = (1,) * (dim - mask.dim()) + tuple(mask.shape)
    if place.axis >= dim - 2 or shape[place.axis] != 1 or place.rows is not None:
        recorder.refuse_mixing(f"a learned mask differs by the examples' position ({user_line()})")
    axis = place.axis
    spread = (*shape[:axis], 1, 1, *shape[axis + 1 :])
    copies = _copies(recorder, mask, spread, "scaled_dot_product_attention").movedim(0, axis + 1)
    whole = [-1] * copies.dim()
    whole[axis], whole[axis + 2] = place.outer, place.inner
    given["attn_mask"] = copies.expand(whole).flatten(axis, axis + 2)
    recorder.set_mark(given["attn_mask"], place)
    rest = {"dropout_p": args[4]} if len(args) > 4 else {}
    rest |= {"is_causal": args[5]} if len(args) > 5 else {}
    with recorder:
        return F.scaled_dot_product_attention(**given, **rest)


def general(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any other function of weights and data."""
    name = getattr(func, "__name__", str(func))
    flat, tree = tree_flatten((args, kwargs))
    weights, data, places = [], [], {}
    for i, value in enumerate(flat):
        if recorder.is_tracked(value):
            weights.append(i)
        elif isinstance(value, Tensor) and recorder.is_data(value):
            data.append(i)
            places[i] = recorder.place(value)
    tracked = {i: flat[i] for i in weights}
    title = f"{recorder.names_in(args, kwargs)} through {name}"
    to = _result_place(recorder, func, name, args, kwargs, title)
    values = [_detached(value) if i in tracked else value for i, value in enumerate(flat)]
    if to != FIRST or any(place != FIRST for place in places.values()):
        func = _with_examples_first(func, tree, places, to, recorder.n)
        for i, place in places.items():
            values[i] = _examples_first(flat[i], place, recorder.n)
    inputs = [values[i] for i in data]
    call = Call(func, values, tree, data, data, title)

    def put(call: Call, output: tuple[Tensor, dict[int, Tensor]], e: Tensor) -> None:
        if recorder.outside():
            return
        for i, weight in tracked.items():
            if weights_of(output[0], {output[1][i]}):  # not for `x.type_as(weight)`
                recorder.add(weight, General(call, i, e, output), name)

    result = _apply(functions.Apply, recorder.anchor, call, weights, put, *inputs)
    if to == FIRST:
        return result
    return _examples_back(result, to)


def _result_place(
    recorder: Tracker, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], title: str
) -> Place:
    """Where the examples will be in the result of a call, by the table."""
    with torch.no_grad():
        result = func(*args, **kwargs)
    rule = TABLE.get(func)
    if rule is None or not isinstance(result, Tensor):
        recorder.refuse_mixing(f"{title} is not known to treat each example by itself ({user_line()})")
    try:
        found = rule(Seen(name, args, kwargs, result, recorder.mark, recorder.unit, recorder.unit))
    except Mixing as error:
        recorder.refuse_mixing(f"{error} ({user_line()})")
    if not isinstance(found, Place) or found.rows is not None:
        recorder.refuse_mixing(f"{title} leaves the examples at no place of their own ({user_line()})")
    return found


def _examples_first(t: Tensor, place: Place, n: int) -> Tensor:
    return split(t, place, n).movedim(place.axis + 1, 0)


def _examples_back(t: Tensor, place: Place) -> Tensor:
    return t.movedim(0, place.axis + 1).flatten(place.axis, place.axis + 2)


def _with_examples_first(func: Any, tree: Any, places: dict[int, Place], to: Place, n: int) -> Any:
    """The function on data, and with a result, that have the examples first."""

    def moved(*args: Any, **kwargs: Any) -> Tensor:
        flat, _ = tree_flatten((args, kwargs))
        flat = [_examples_back(t, places[i]) if i in places else t for i, t in enumerate(flat)]
        args, kwargs = tree_unflatten(flat, tree)
        result = func(*args, **kwargs)
        count = result.shape[to.axis] // (to.outer * to.inner)
        return _examples_first(result, to, count)

    return moved


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
