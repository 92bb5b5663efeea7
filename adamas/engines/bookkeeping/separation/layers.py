"""Rules of functions of layers: convolutions, normalisations, look-ups, losses, recurrent layers."""

from collections.abc import Callable

from torch import Tensor

from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation.axes import axes_of, last_axes
from adamas.engines.bookkeeping.separation.call import Call, Found, Mixing
from adamas.engines.bookkeeping.separation.elementwise import broadcast


def batch_first(axes: int | None = None) -> Callable[[Call], Found]:
    """Makes the rule of a function that treats each entry of the first axis by itself.

    Args:
        axes: The number of axes of an image without batch and channels; None for any.
    """

    def rule(call: Call) -> Found:
        x = call.first
        call.only(x)
        place = call.place(x)
        if place is None:
            return None
        if place.axis != 0:
            raise Mixing(f"{call.name} has its examples on another axis than the first")
        if x.dim() != axes + 2 if axes is not None else x.dim() < 2:
            raise Mixing(f"{call.name} has an input without an example axis")
        return place

    return rule


def pool(axes: int) -> Callable[[Call], Found]:
    """Makes the rule of pooling over some axes."""
    return last_axes(axes)


def group_norm(call: Call) -> Found:
    """Follows group normalisation."""
    return batch_first()(call)


def instance_norm(call: Call) -> Found:
    """Follows instance normalisation without running statistics."""
    if call.get(1, "running_mean") is not None or call.get(5, "use_input_stats") is False:
        raise Mixing("instance_norm with running statistics mixes the examples")
    return batch_first()(call)


def bare_instance_norm(call: Call) -> Found:
    """Follows `torch.instance_norm`, whose arguments have another order."""
    if call.get(3, "running_mean") is not None or not call.get(5, "use_input_stats"):
        raise Mixing("instance_norm with running statistics mixes the examples")
    return batch_first()(call)


def batch_norm(call: Call) -> Found:
    """Follows batch normalisation with frozen statistics."""
    if call.get(5, "training", default=False) or call.get(1, "running_mean") is None:
        raise Mixing("batch_norm in training mixes the examples")
    x = call.first
    call.only(x)
    place = call.place(x)
    if place is not None and place.axis == 1:
        raise Mixing("batch_norm has its examples on the axis of the channels")
    return place


def grid_sample(call: Call) -> Found:
    """Follows `grid_sample`."""
    x, grid = call.first, call.get(1, "grid")
    found: Place | None = None
    for t in (x, grid):
        place = call.place(t)
        if place is not None and (place.axis or (found is not None and found != place)):
            raise Mixing("grid_sample combines each example with others")
        found = found or place
    if found is not None:
        for t in (x, grid):
            if call.place(t) is None:
                call.constant(t, 0, found)
    return found


def embedding(call: Call) -> Found:
    """Follows a look-up in a constant table."""
    indices = call.first
    call.only(indices)
    if call.get(3, "max_norm") is not None or call.get(5, "scale_grad_by_freq", default=False):
        raise Mixing("embedding with max_norm or scale_grad_by_freq mixes the examples")
    return call.place(indices)


def bare_embedding(call: Call) -> Found:
    """Follows `torch.embedding`, which takes the weight first."""
    indices = call.get(1, "indices")
    call.only(indices)
    if call.get(3, "scale_grad_by_freq", default=False):
        raise Mixing("embedding with scale_grad_by_freq mixes the examples")
    return call.place(indices)


def embedding_bag(call: Call) -> Found:
    """Follows sums of looked-up rows, a bag for each example."""
    indices = call.first
    if call.get(2, "offsets") is not None or indices.dim() != 2:
        raise Mixing("embedding_bag with offsets is not followed")
    if call.get(3, "max_norm") is not None or call.get(5, "scale_grad_by_freq", default=False):
        raise Mixing("embedding_bag with max_norm or scale_grad_by_freq mixes the examples")
    weights = call.kwargs.get("per_sample_weights")
    tensors = (indices,) if weights is None else (indices, weights)
    call.only(*tensors)
    place = broadcast(call, tensors, 2)
    if place is not None and place.axis:
        raise Mixing("embedding_bag sums over the examples")
    return place


def one_hot(call: Call) -> Found:
    """Follows `one_hot` with a given number of classes."""
    call.only(call.first)
    if call.get(1, "num_classes", default=-1) < 0:
        raise Mixing("one_hot without num_classes counts the classes of the whole batch")
    return call.place(call.first)


def cross_entropy(call: Call) -> Found:
    """Follows a loss over classes, without reduction."""
    x, target = call.first, call.get(1, "target")
    reduction = call.get(6, "reduction", default="mean")
    if reduction != "none" or call.get(3, "size_average") is not None or call.get(5, "reduce") is not None:
        raise Mixing(f'{call.name} without reduction="none" runs over the examples')
    call.only(x, target)
    classes = 0 if x.dim() == 1 else 1
    found: Place | None = None
    for t in (x, target):
        place = call.place(t)
        if place is None:
            continue
        if t.dim() == x.dim() and t.is_floating_point():
            if place.axis == classes:
                raise Mixing(f"{call.name} runs along the examples")
            place = place.shifted(-(place.axis > classes))
        if found is not None and found != place:
            raise Mixing(f"{call.name} combines each example with others")
        found = place
    if found is not None:
        for t in (x, target):
            if call.place(t) is None:
                whole = t.dim() == x.dim() and t.is_floating_point()
                call.constant(t, found.axis + (whole and found.axis >= classes), found)
    return found


def ctc_loss(call: Call) -> Found:
    """Follows `ctc_loss(log_probs (T, n, C), targets (n, S), input_lengths, target_lengths)`."""
    x, targets = call.args[:2]
    reduction = call.get(5, "reduction", default="mean")
    if reduction != "none" or targets.dim() != 2 or x.dim() != 3:
        raise Mixing('ctc_loss is followed only with reduction="none" and padded targets')
    for lengths in (call.get(2, "input_lengths"), call.get(3, "target_lengths")):
        if not isinstance(lengths, Tensor) and len(set(lengths)) > 1:
            raise Mixing("ctc_loss takes lengths that differ by the examples' position")
    found: Place | None = None
    for t in call.tensors():
        place = call.place(t)
        if place is None:
            continue
        if t is x:
            if place.axis != 1:
                raise Mixing("ctc_loss has its examples on another axis than the second")
            place = place._replace(axis=0)
        if place.axis or (found is not None and found != place):
            raise Mixing("ctc_loss combines each example with others")
        found = place
    if found is not None:
        for t in call.tensors():
            if call.place(t) is None:
                call.constant(t, 1 if t is x else 0, found)
    return found


def similarity(position: int) -> Callable[[Call], Found]:
    """Makes the rule of an elementwise function with a sum along one axis."""

    def rule(call: Call) -> Found:
        x, y = call.args[:2]
        dim = max(x.dim(), y.dim())
        place = broadcast(call, (x, y), dim)
        axis = axes_of(call.get(position, "dim", default=1 if position == 2 else -1), dim)[0]
        if place is None:
            return None
        if place.axis == axis:
            raise Mixing(f"{call.name} runs along the examples")
        kept = call.result.dim() == dim
        return place if kept else place.shifted(-(axis < place.axis))

    return rule


def recurrent(call: Call) -> Found:
    """Follows a fused recurrent layer with constant weights: `(x, states, weights, ..., batch_first)`."""
    x, states, weights = call.args[:3]
    if not isinstance(call.args[3], bool):
        raise Mixing(f"{call.name} of packed sequences with constant weights is not followed")
    states = list(states) if isinstance(states, list | tuple) else [states]
    axis = 0 if call.args[8] else 1
    for w in weights:
        if call.place(w) is not None:
            raise Mixing(f"{call.name} has weights that are data")
    place = call.place(x)
    for s in states:
        own = call.place(s)
        if own is not None and (own.axis != 1 or (place is not None and own._replace(axis=axis) != place)):
            raise Mixing(f"{call.name} combines each example with others")
        place = own._replace(axis=axis) if place is None and own is not None else place
    if place is None:
        return None
    if place.axis != axis:
        raise Mixing(f"{call.name} has its examples on another axis than its batch's")
    for s in states:
        if call.place(s) is None:
            call.constant(s, 1, place)
    return [place, *(place._replace(axis=1) for _ in states)]


def recurrent_cell(call: Call) -> Found:
    """Follows one place of a recurrent layer with constant weights."""
    x, state, *weights = call.args
    states = list(state) if isinstance(state, list | tuple) else [state]
    for w in weights:
        if call.place(w) is not None:
            raise Mixing(f"{call.name} has weights that are data")
    place = broadcast(call, (x, *states), 2)
    if place is not None and place.axis:
        raise Mixing(f"{call.name} runs along the examples")
    return place
