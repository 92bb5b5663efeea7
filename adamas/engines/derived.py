r"""Weights that a model computes from its parameters: standardised, normalised, re-parametrised.

Where a layer uses :math:`t = f(p)`, an example's gradient for :math:`p` is :math:`J^T G_i`, with its gradient
:math:`G_i` for :math:`t` and the Jacobian :math:`J` of :math:`f`. In general that takes a vector-Jacobian
product for each example. For the usual normalisations of the rows of a weight matrix
(`RowMap`) the norm of the product has a closed form.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adamas._numerics import squared_norms
from adamas.engines.records import CANCELLATION, Convolution, Outer, Record, chunk_length
from adamas.geometry import Geometry

Derived: TypeAlias = list[tuple[Tensor, list[Record]]]
"""Derived weights, and the records of their uses."""


def leaves_of(t: Tensor, params: Collection[Tensor]) -> list[Tensor]:
    """The parameters of which a derived weight is a function."""
    found: list[Tensor] = []
    seen, todo = set(), [t.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf in params:
            found.append(leaf)
        todo += [following for following, _ in node.next_functions]
    return found


def grouped(derived: Derived, params: Collection[Tensor]) -> list[tuple[list[Tensor], Derived]]:
    """Derived weights that share parameters, together with these parameters."""
    groups: list[tuple[list[Tensor], Derived]] = []
    for t, records in derived:
        leaves, members = leaves_of(t, params), [(t, records)]
        apart = []
        for other in groups:
            if any(any(p is q for q in leaves) for p in other[0]):
                leaves += [p for p in other[0] if not any(p is q for q in leaves)]
                members += other[1]
            else:
                apart.append(other)
        groups = [*apart, (leaves, members)]
    return groups


def derived_squares(
    leaves: list[Tensor], members: Derived, direct: Mapping[Tensor, list[Record]], geometry: Geometry
) -> Tensor:
    """Squared whitened norms over the parameters of a group, which may have uses of their own."""
    if len(members) == 1 and len(members[0][1]) == 1 and not any(p in direct for p in leaves):
        taken = members[0][1][0].whitened
        if taken is not None:
            return taken
    size = sum(p.numel() for p in leaves) + sum(t.numel() for t, _ in members)
    n = members[0][1][0].n
    step = chunk_length(size)
    parts = []
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        gradients = _pulled_back(
            [t for t, _ in members], leaves, [_total(records, rows) for _, records in members]
        )
        squares = torch.zeros((), dtype=torch.float64)
        for p, g in zip(leaves, gradients, strict=True):
            k = rows.stop - rows.start
            total = torch.zeros((k, *p.shape), dtype=p.dtype, device=p.device) if g is None else g
            for record in direct.get(p, []):
                total = total + record.materialize(rows)
            squares = squares + squared_norms(geometry.whiten(p, total))
        parts.append(squares)
    return torch.cat(parts)


def _pulled_back(outputs: list[Tensor], leaves: list[Tensor], rows: list[Tensor]) -> list[Tensor | None]:
    """Vector-Jacobian products of a chunk of examples: `(k, *p.shape)` for each parameter."""
    settings: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(outputs, leaves, rows, is_grads_batched=True, **settings))
    except RuntimeError:  # such as a checkpoint that draws dropout masks when it is run again
        each = [torch.autograd.grad(outputs, leaves, one, **settings) for one in zip(*rows, strict=True)]
        return [
            None if any(g is None for g in parts) else torch.stack(parts) for parts in zip(*each, strict=True)
        ]


def _total(records: list[Record], rows: slice) -> Tensor:
    total = records[0].materialize(rows)
    for record in records[1:]:
        total = total + record.materialize(rows)
    return total


class RowMap:
    r"""The Jacobian of a normalisation that treats each row of a weight alike.

    For a row with unit vector :math:`\hat t = t/|t|`, weight standardisation, normalisation to length 1 and
    scaling all have

    .. math:: J^T G = \alpha\,G_\perp + \alpha_1\,\bar g\,1 + \alpha_t\,(\hat t \cdot G)\,\hat t

    with the row's mean :math:`\bar g` and the rest :math:`G_\perp`. So with n numbers in a row,

    .. math:: |J^T G|^2 = \alpha^2 |G|^2 + (\alpha_1^2 - \alpha^2)\,n \bar g^2
              + (\alpha_t^2 - \alpha^2)(\hat t \cdot G)^2.

    The three factors are read off the Jacobian with one vector, and the form is checked with another, at
    every step.
    """

    def __init__(self, leaf: Tensor, alpha: Tensor, one: Tensor, own: Tensor, length: Tensor) -> None:
        self.leaf, self.alpha, self.one, self.own, self.length = leaf, alpha, one, own, length
        self.width = leaf.shape[1:].numel()

    @classmethod
    def fit(cls, t: Tensor, params: Collection[Tensor]) -> "RowMap | None":
        """The map of a derived weight, or None if its Jacobian has another form."""
        leaves = leaves_of(t, params)
        if len(leaves) != 1 or leaves[0].shape != t.shape or t.dim() < 2 or not t.numel():
            return None
        (leaf,) = leaves
        height, width = t.shape[0], t.shape[1:].numel()
        if width < 4:  # too few directions to tell the three factors apart
            return None
        with torch.no_grad():
            rows = t.flatten(1)
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            unit = rows / length
            tolerance = 64 * torch.finfo(t.dtype).eps
            centred = bool((unit.mean(1).abs() < tolerance).all())

        def composed(rest: Tensor, along: Tensor, mean: Tensor) -> Tensor:
            vector: Tensor = rest + along * unit
            return vector + mean if centred else vector

        def pulled(vector: Tensor) -> Tensor:
            g: Tensor = torch.autograd.grad(t, leaf, vector.view_as(t), retain_graph=True)[0]
            return g.flatten(1)

        def remainder(values: Tensor) -> Tensor:
            """What is neither along the row nor its mean."""
            values = values - _dot(values, unit).to(rows) * unit
            return values - values.mean(1, keepdim=True) if centred else values

        with torch.no_grad():
            # The factors come from one vector, whose rows are of one size, so that none drowns in rounding.
            rest = remainder((1.5 + _scattered(height, rows)).unsqueeze(1) / 2 * _scattered(width, rows))
            size = rows.new_full((height, 1), width**0.5)
            g = pulled(composed(rest, size, size / width**0.5))
            alpha, own = _dot(g, rest) / _dot(rest, rest), _dot(g, unit) / width**0.5
            one = g.double().mean(1, keepdim=True) if centred else alpha
            # The form is checked on another one: rows that act on one another show in it.
            phases = _scattered(3 * height + width, rows)
            along, mean, factors = phases[: 3 * height].view(3, height, 1)
            rest = remainder((1.5 + factors) * phases[3 * height :])
            along = along * width**0.5
            vector = composed(rest, along, mean)
            expected = composed(alpha.to(rows) * rest, (own * along).to(rows), (one * mean).to(rows))
            error = torch.linalg.vector_norm(pulled(vector) - expected, dim=1)
            largest = torch.cat([alpha, own, one], 1).abs().amax(1)
            small = error <= tolerance * largest * torch.linalg.vector_norm(vector, dim=1)
        if not small.all():  # also where something is not finite
            return None
        return cls(leaf, *(factor[:, 0].double() for factor in (alpha, one, own, length)))

    def squares(self, record: Outer | Convolution, rows: Tensor | None, output: Tensor) -> Tensor | None:
        """`|J^T G_i|^2` in float64, or None where it has no cheap form or would lose digits.

        Args:
            record: The use of the derived weight.
            rows: Squared norms of the rows of each `G_i`, if they are known.
            output: The layer's output without its bias, of the record's output gradient's shape: as
                `y = t x`, its product with the output gradient is `t . G`.
        """
        if rows is not None:
            total = rows @ self.alpha.square()
        else:
            scaled = record.with_rows_scaled(self.alpha.to(record.dtype)).squares()
            if scaled is None:
                return None
            total = scaled
        result = total + (record.row_products(output) / self.length).square() @ (
            self.own.square() - self.alpha.square()
        )
        if not torch.equal(self.one, self.alpha):
            result += record.row_sums().square() @ (self.one.square() - self.alpha.square()) / self.width
        return None if (result < CANCELLATION * total).any() else result


def _scattered(n: int, like: Tensor) -> Tensor:
    """Values in [-1, 1] without a pattern that a Jacobian could have."""
    phase = torch.arange(1, n + 1, dtype=torch.float64, device=like.device).square() * math.sqrt(2)
    return torch.cos(2 * math.pi * phase.frac()).to(like.dtype)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """The products of the rows of two matrices, in float64: `(rows, 1)`."""
    return (x * y).sum(1, keepdim=True, dtype=torch.float64)
