"""The rule of a gradient that the loss itself takes."""

from torch import Tensor

from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation.call import Call, Found, Mark, Mixing


def inner_gradient(call: Call) -> Found:
    """Follows `torch.autograd.grad` of a sum over the examples, with respect to data."""
    outputs, inputs = call.get(0, "outputs"), call.get(1, "inputs")
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if call.get(7, "is_grads_batched", default=False):
        raise Mixing("autograd.grad of several gradients at once is not followed")
    weights = call.get(2, "grad_outputs")
    weights = [weights] if weights is None or isinstance(weights, Tensor) else list(weights)
    for i, output in enumerate(outputs):
        mark = call.mark(output)
        weight = weights[i] if i < len(weights) else None
        if mark is not None and mark.total and weight is None:
            continue
        if call.place(output) is None or (weight is not None and call.place(weight) != call.place(output)):
            raise Mixing("autograd.grad differentiates something other than a sum over the examples")
    places: list[Place | Mark | None] = []
    for x, gradient in zip(inputs, call.result, strict=True):
        place = call.place(x)
        if gradient is None:
            continue
        if place is None:
            raise Mixing("autograd.grad differentiates with respect to something that is not data")
        places.append(place)
    return places
