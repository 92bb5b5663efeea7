"""Rules of matrix products, einsum, attention and distances."""

from collections.abc import Sequence

from torch import Tensor

from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation.call import Call, Found, Mixing
from adamas.engines.bookkeeping.separation.elementwise import broadcast


def products(call: Call, a: Tensor, b: Tensor) -> Place | None:
    """Follows a product: examples are on batch axes of both factors, or on rows of one next to a constant."""
    pa, pb = call.place(a), call.place(b)
    dim = call.result.dim()
    if pa is None and pb is None:
        return None
    rows_a = pa is not None and pa.axis == a.dim() - 2
    columns_b = pb is not None and pb.axis == b.dim() - 1 and b.dim() > 1
    if (pa is not None and pa.axis == a.dim() - 1) or (pb is not None and pb.axis == max(0, b.dim() - 2)):
        raise Mixing(f"{call.name} sums over the examples")
    if rows_a or columns_b:
        if (pa is None) == (pb is None):
            raise Mixing(f"{call.name} combines each example with others")
        if rows_a:
            assert pa is not None
            return pa._replace(axis=dim - (1 if b.dim() == 1 else 2))
        assert pb is not None
        return pb._replace(axis=dim - 1)
    # On batch axes: counted from the last, with two axes for each matrix.
    lead = dim - (a.dim() > 1) - (b.dim() > 1)
    found: Place | None = None
    for t, place in ((a, pa), (b, pb)):
        if place is None:
            continue
        place = place._replace(axis=place.axis - max(0, t.dim() - 2) + lead)
        if found is None:
            found = place
        elif found != place:
            raise Mixing(f"{call.name} combines each example with others")
    assert found is not None
    for t, place in ((a, pa), (b, pb)):
        if place is None and t.dim() > 2:
            call.constant(t, found.axis - lead + t.dim() - 2, found)
    return found


def matmul(call: Call) -> Found:
    """Follows a matrix product."""
    return products(call, call.first, call.get(1, "other", "mat2", "vec"))


def reversed_matmul(call: Call) -> Found:
    """Follows a matrix product with its factors exchanged."""
    return products(call, call.args[1], call.args[0])


def added_product(call: Call) -> Found:
    """Follows `addmm` and its relatives."""
    first, second = call.get(1, "mat1", "batch1", "mat"), call.get(2, "mat2", "batch2", "vec")
    found = products(call, first, second)
    return _with_bias(call, found, call.first)


def _with_bias(call: Call, found: Place | None, bias: Tensor | None) -> Place | None:
    if bias is None:
        return found
    place, dim = call.place(bias), call.result.dim()
    if place is not None:
        place = place.shifted(dim - bias.dim())
        if place != found:
            raise Mixing(f"{call.name} combines each example with others")
        return place
    if found is not None:
        call.constant(bias, found.axis - dim + bias.dim(), found)
    return found


def linear(call: Call) -> Found:
    """Follows a linear map with constant weights."""
    x, w, b = call.first, call.get(1, "weight"), call.get(2, "bias")
    call.only(x)
    place = call.place(x)
    if place is None:
        return None
    if place.axis == x.dim() - 1:
        raise Mixing("linear sums over the examples")
    if w.dim() == 1:
        return place
    return _with_bias(call, place, b)


def bilinear(call: Call) -> Found:
    """Follows a bilinear map with constant weights."""
    x, y = call.first, call.get(1, "input2")
    call.only(x, y)
    place = broadcast(call, (x, y), x.dim())
    if place is not None and place.axis == x.dim() - 1:
        raise Mixing("bilinear sums over the examples")
    return place


def einsum(call: Call) -> Found:
    """Follows an einsum by the letter of the examples."""
    equation = call.args[0]
    operands = call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "->" not in equation:
        raise Mixing("einsum is followed only in the form 'ab,bc->ac'")
    inputs, output = equation.replace(" ", "").split("->")
    if "..." in equation:
        inputs, output = _without_dots(inputs, output, operands)
    found: tuple[str, Place] | None = None
    letters = inputs.split(",")
    for subscript, t in zip(letters, operands, strict=True):
        place = call.place(t)
        if place is None:
            continue
        letter = subscript[place.axis]
        if found is not None and found != (letter, place._replace(axis=0)):
            raise Mixing("einsum combines each example with others")
        found = letter, place._replace(axis=0)
    if found is None:
        return None
    letter, place = found
    if output.count(letter) != 1 or any(subscript.count(letter) > 1 for subscript in letters):
        raise Mixing("einsum sums over the examples")
    for subscript, t in zip(letters, operands, strict=True):
        own = call.place(t)
        if own is None and letter in subscript:
            call.constant(t, subscript.index(letter), place)
        elif own is not None and subscript.find(letter) != own.axis:
            raise Mixing("einsum combines each example with others")
    return place._replace(axis=output.index(letter))


def _without_dots(inputs: str, output: str, operands: Sequence[Tensor]) -> tuple[str, str]:
    """Writes letters for the axes that '...' stands for, which are aligned from the last."""
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in inputs + output]
    named, most = [], 0
    for subscript, t in zip(inputs.split(","), operands, strict=True):
        count = t.dim() - len(subscript.replace("...", "")) if "..." in subscript else 0
        most = max(most, count)
        named.append(subscript.replace("...", "".join(free[-count:]) if count else ""))
    return ",".join(named), output.replace("...", "".join(free[-most:]) if most else "")


def attention(call: Call) -> Found:
    """Follows attention, whose batch axes broadcast."""
    query, key, value = call.first, call.get(1, "key"), call.get(2, "value")
    mask = call.get(3, "attn_mask")
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    dim = call.result.dim()
    for t in tensors:
        place = call.place(t)
        if place is not None and place.axis >= t.dim() - 2:
            raise Mixing("scaled_dot_product_attention runs along the examples")
    if call.kwargs.get("enable_gqa"):
        places = [call.place(t) for t in tensors]
        if any(p is not None and p.axis == dim - 3 for p in places):
            raise Mixing("grouped attention folds the examples with its heads")
        for t, place in zip(tensors, places, strict=True):
            if place is None and t.shape[:-3].numel() > 1:
                raise Mixing("grouped attention meets a constant with batch axes")
        found = {p.shifted(dim - t.dim()) for t, p in zip(tensors, places, strict=True) if p is not None}
        if len(found) > 1:
            raise Mixing("scaled_dot_product_attention combines each example with others")
        return next(iter(found), None)
    return broadcast(call, tensors, dim)


def distances(call: Call) -> Found:
    """Follows `cdist`."""
    a, b = call.first, call.get(1, "x2")
    for t in (a, b):
        place = call.place(t)
        if place is not None and place.axis == t.dim() - 1:
            raise Mixing("cdist runs along the examples")
    pa, pb = call.place(a), call.place(b)
    if (pa is not None and pa.axis == a.dim() - 2) or (pb is not None and pb.axis == b.dim() - 2):
        if pa is None and pb is not None:
            return pb._replace(axis=call.result.dim() - 1)
        if pb is None and pa is not None:
            return pa._replace(axis=call.result.dim() - 2)
        raise Mixing("cdist combines each example with others")
    return broadcast(call, (a, b), call.result.dim())
