r"""What one use of a weight leaves behind, and its per-example gradients' norms and weighted sum.

A record knows the gradient :math:`G_i` of each example without holding it. For a linear layer with
inputs :math:`a` and output gradients :math:`e` over :math:`T` places, :math:`G_i = \sum_t e_{it} a_{it}^T`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas._numerics import memory_order, squared_norms
from adamas.geometry import Geometry

aten = torch.ops.aten

# Numbers that a chunk of per-example gradients or of unfolded images may hold: 2 MB of float32 stay in
# the cache between the product that makes them and the norm that reads them.
CHUNK = 1 << 19

# |g - c|^2 by expansion loses digits when g is near c. Below this share of |c|^2 it is done anew, directly.
CANCELLATION = 1e-2


def chunk_length(size: int) -> int:
    """How many examples of this many numbers make a chunk: at least one for each thread."""
    threads = torch.get_num_threads()
    return max(threads, threads * CHUNK // max(1, size))


CHUNKED = "per-example gradients in chunks"


class Record(ABC):
    """The gradients of one weight, one per example, in a form that is cheaper than themselves.

    Attributes:
        n: Number of examples.
        whitened: Squared norms that were taken on the way, in the geometry of this step; of a derived weight,
            those of the parameter's gradients.
        function: The function that used the weight.
        seconds: Time that was spent on the way.
    """

    n: int
    whitened: Tensor | None = None
    function: str = ""
    seconds: float = 0.0

    @abstractmethod
    def formula(self, per_coordinate: bool) -> str:
        """How norms are taken, in words, for a scale per coordinate or a single one."""

    @abstractmethod
    def tensors(self) -> Sequence[Tensor]:
        """What the record holds."""

    @abstractmethod
    def materialize(self, rows: slice | Tensor) -> Tensor:
        """The gradients of some examples: `(k, *shape)`."""

    @abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        """Adds `sum_i weights[i] G_i` to `out`, or overwrites it if it is `fresh`.

        Weights and `out` have the type of the gradients.
        """

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the gradients."""

    @abstractmethod
    def kept(self, rows: Tensor) -> "Record":
        """The record of some examples only."""

    def squares(self) -> Tensor | None:
        """`|G_i|^2` in float64, or None where materializing is as good."""
        return None

    def products(self, c: Tensor) -> Tensor | None:
        """`<G_i, c>` in float64, or None where materializing is as good."""
        return None

    def scaled_squares(self, c: Tensor | None, s: Tensor, constant: float | None) -> Tensor | None:
        """`|(G_i - c)/s|^2` for a scale per coordinate, or None where materializing is as good.

        Args:
            c: The centre.
            s: The scale.
            constant: `|c/s|^2`, if there is a centre.
        """
        return None


class Dense(Record):
    """Gradients in hand, `(n, *shape)`: biases, normalisations, whatever is small or was needed anyway."""

    def __init__(self, gradients: Tensor, formula: str = "gradients in hand") -> None:
        self.gradients, self._formula = gradients, formula
        self.n = gradients.shape[0]
        self._squares: Tensor | None = None

    def materialize(self, rows: slice | Tensor) -> Tensor:
        return self.gradients[rows]

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        order = memory_order(self.gradients)
        gradients = self.gradients.permute(0, *order).reshape(self.n, out.numel())
        ordered = out.permute([axis - 1 for axis in order])
        if ordered.is_contiguous():
            ordered.view(-1).addmv_(gradients.t(), weights, beta=0 if fresh else 1)
        else:
            total = torch.mv(gradients.t(), weights).view(ordered.shape)
            ordered.copy_(total) if fresh else ordered.add_(total)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradients.dtype

    def kept(self, rows: Tensor) -> "Dense":
        return Dense(self.gradients[rows])

    def squares(self) -> Tensor:
        if self._squares is None:
            self._squares = squared_norms(self.gradients)
        return self._squares

    def formula(self, per_coordinate: bool) -> str:
        return self._formula

    def tensors(self) -> Sequence[Tensor]:
        return (self.gradients,)


class Outer(Record):
    """A linear map: inputs `(n, T, p)` and output gradients `(n, T, d)`; the gradient is `(d, p)`.

    Args:
        a: Inputs.
        e: Output gradients.
        transposed: The weight is stored as `(p, d)`.
        bias: The record of the layer's bias, which may know `|e|^2` already.
    """

    def __init__(self, a: Tensor, e: Tensor, transposed: bool = False, bias: Dense | None = None) -> None:
        self.a, self.e, self.transposed, self.bias = a, e, transposed, bias
        self.n, self.places = a.shape[:2]

    def formula(self, per_coordinate: bool) -> str:
        if self.places == 1:
            return "two matrix products" if per_coordinate else "|input| |output gradient|"
        return "Gram matrices of the places" if self.gram_pays() and not per_coordinate else CHUNKED

    def tensors(self) -> Sequence[Tensor]:
        return (self.a, self.e)

    def gram_pays(self) -> bool:
        """Few places: the Gram matrices over places are smaller than the weight."""
        p, d = self.a.shape[2], self.e.shape[2]
        return self.places * (p + d) < p * d

    def materialize(self, rows: slice | Tensor) -> Tensor:
        left, right = (self.a, self.e) if self.transposed else (self.e, self.a)
        return torch.bmm(left[rows].transpose(1, 2), right[rows])

    def chunk(self) -> int:
        """Examples whose gradients fit the cache."""
        return chunk_length(self.a.shape[2] * self.e.shape[2])

    def empty(self, count: int, *, by_rows: bool) -> Tensor:
        """A buffer for the gradients of some examples."""
        shape = (self.a, self.e) if self.transposed else (self.e, self.a)
        return torch.empty((count, *(t.shape[2] for t in shape)), dtype=self.dtype, device=self.e.device)

    def materialize_into(self, out: Tensor, rows: slice) -> Tensor:
        """Writes the gradients of some examples into a buffer."""
        left, right = (self.a, self.e) if self.transposed else (self.e, self.a)
        return torch.bmm(left[rows].transpose(1, 2), right[rows], out=out)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        a, e = self.a, self.e
        if a.shape[2] < e.shape[2]:  # the smaller of the two is scaled
            a = a * weights.view(-1, 1, 1)
        else:
            e = e * weights.view(-1, 1, 1)
        left, right = (a, e) if self.transposed else (e, a)
        out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1), beta=0 if fresh else 1)

    @property
    def dtype(self) -> torch.dtype:
        return self.e.dtype

    def kept(self, rows: Tensor) -> "Outer":
        return Outer(self.a[rows], self.e[rows], self.transposed)

    def squares(self) -> Tensor | None:
        if self.places == 1:
            of_e = squared_norms(self.e) if self.bias is None else self.bias.squares()
            return squared_norms(self.a) * of_e
        return _gram_product(self.a, self.e) if self.gram_pays() else None

    def products(self, c: Tensor) -> Tensor:
        matrix = c if not self.transposed else c.t()
        return _rowwise(self.e @ matrix, self.a)

    def with_rows_scaled(self, factors: Tensor) -> "Outer":
        """The record of the same gradients with a factor for each row."""
        return Outer(self.a, self.e * factors, self.transposed)

    def row_products(self, y: Tensor) -> Tensor:
        """`sum_t e_t y_t` for each row: `(n, d)`, float64."""
        return (self.e * y).sum(1).double()

    def row_sums(self) -> Tensor:
        """The sum over each row of the gradients: `(n, d)`, float64."""
        return self.row_products(self.a.sum(2, keepdim=True))

    def scaled_squares(self, c: Tensor | None, s: Tensor, constant: float | None) -> Tensor | None:
        if self.places != 1:
            return None
        a, e = self.a[:, 0], self.e[:, 0]
        matrix = s.pow(-2)
        total = _rowwise(e.square() @ (matrix.t() if self.transposed else matrix), a.square())
        if c is not None and constant is not None:
            matrix.mul_(c)
            total -= 2 * _rowwise(e @ (matrix.t() if self.transposed else matrix), a)
            total += constant
        return total


class Convolution(Record):
    """A convolution: inputs `(n, ci, *size)` and output gradients `(n, co, *out)`."""

    def __init__(
        self,
        x: Tensor,
        e: Tensor,
        shape: Sequence[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> None:
        self.x, self.e, self.shape = x, e, tuple(shape)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.n = x.shape[0]
        self._unfold: Unfold | None = None

    def _with(self, x: Tensor, e: Tensor) -> "Convolution":
        return Convolution(x, e, self.shape, self.stride, self.padding, self.dilation, self.groups)

    def kept(self, rows: Tensor) -> "Convolution":
        return self._with(self.x[rows], self.e[rows])

    def chunk(self) -> int:
        """Examples whose unfolded images and gradients fit the cache."""
        unfolded = self.x.shape[1] * math.prod(self.shape[2:]) * self.e.shape[2:].numel()
        return min(max(1, self.n), chunk_length(max(unfolded, math.prod(self.shape))))

    def materialize(self, rows: slice | Tensor) -> Tensor:
        k = self.x[rows].shape[0]
        out = torch.empty((k, *self.shape), dtype=self.x.dtype, device=self.x.device)
        return self.materialize_into(out, rows)

    def empty(self, count: int, *, by_rows: bool) -> Tensor:
        """A buffer for the gradients of some examples, with the output channels last in memory.

        That is how they are made fastest; `by_rows` is for those who need them as they are counted.
        """
        co, *window = self.shape
        if by_rows or self.groups > 1:
            return torch.empty((count, co, *window), dtype=self.dtype, device=self.e.device)
        return torch.empty((count, *window, co), dtype=self.dtype, device=self.e.device).movedim(-1, 1)

    def materialize_into(self, out: Tensor, rows: slice | Tensor) -> Tensor:
        """Writes the gradients of some examples into a buffer: output gradient times unfolded image."""
        x, e = self.x[rows], self.e[rows]
        g, co, step = self.groups, self.shape[0], self.chunk()
        if self._unfold is None:
            self._unfold = Unfold(x, step, self.shape[2:], self.stride, self.padding, self.dilation)
        for i in range(0, x.shape[0], step):
            columns = self._unfold(x[i : i + step])
            m = columns.shape[0]
            columns = columns.view(m * g, -1, columns.shape[2])
            gradients, part = e[i : i + step].reshape(m * g, co // g, -1), out[i : i + step]
            if part.is_contiguous():
                torch.bmm(gradients, columns.transpose(1, 2), out=part.view(m * g, co // g, -1))
            else:
                torch.bmm(columns, gradients.transpose(1, 2), out=part.movedim(1, -1).flatten(1, -2))
        return out

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        e = self.e * weights.view(-1, *[1] * (self.e.dim() - 1))
        result = aten.convolution_backward(  # of the weight, only the shape is read
            *(e, self.x, out, None, self.stride, self.padding, self.dilation),
            *(False, [0] * len(self.stride), self.groups, (False, True, False)),
        )[1]
        if fresh:
            out.copy_(result)
        else:
            out.add_(result)

    @property
    def dtype(self) -> torch.dtype:
        return self.e.dtype

    def formula(self, per_coordinate: bool) -> str:
        return "Gram matrices of the pixels" if self.gram_pays() and not per_coordinate else CHUNKED

    def tensors(self) -> Sequence[Tensor]:
        return (self.x, self.e)

    def gram_pays(self) -> bool:
        """Many channels and few pixels: the Gram matrix of the padded pixels is smaller than the weights."""
        if self.groups != 1 or len(self.stride) != 2:
            return False
        pixels = math.prod(s + 2 * p for s, p in zip(self.x.shape[2:], self.padding, strict=True))
        places = self.e.shape[2:].numel()
        window = math.prod(self.shape[2:])
        work = pixels**2 * self.x.shape[1] + places**2 * (self.shape[0] + 2 * window)
        return work < 0.4 * places * math.prod(self.shape)  # measured: below it the unfolded chunks win

    def squares(self) -> Tensor | None:
        if not self.gram_pays():
            return None
        (ph, pw), (sh, sw), (dh, dw) = self.padding, self.stride, self.dilation
        x = F.pad(self.x, (pw, pw, ph, ph))
        n, _, height, width = x.shape
        h, w = self.e.shape[2:]
        x, e = x.flatten(2), self.e.flatten(2)
        pixels = torch.bmm(x.transpose(1, 2), x).view(n, height, width, height, width)
        inputs: Tensor | None = None
        for i in range(self.shape[2]):
            for j in range(self.shape[3]):
                u = slice(i * dh, i * dh + sh * (h - 1) + 1, sh)
                v = slice(j * dw, j * dw + sw * (w - 1) + 1, sw)
                shifted = pixels[:, u, v, u, v]
                inputs = shifted.clone() if inputs is None else inputs.add_(shifted)
        assert inputs is not None
        return _rowwise(inputs.flatten(1), torch.bmm(e.transpose(1, 2), e).flatten(1))

    def with_rows_scaled(self, factors: Tensor) -> "Convolution":
        """The record of the same gradients with a factor for each row."""
        return self._with(self.x, self.e * factors.view(-1, *[1] * len(self.stride)))

    def row_products(self, y: Tensor) -> Tensor:
        """`sum_t e_t y_t` for each row: `(n, co)`, float64."""
        return (self.e * y).flatten(2).sum(2).double()

    def row_sums(self) -> Tensor:
        """The sum over each row of the gradients, without groups: `(n, co)`, float64."""
        window = self.x.new_ones((1, 1, *self.shape[2:]))
        axes = len(self.stride)
        sums = torch.convolution(
            *(self.x.sum(1, keepdim=True), window, None, self.stride, self.padding, self.dilation),
            *(False, [0] * axes, 1),
        )
        return self.row_products(sums)

    def products(self, c: Tensor) -> Tensor:
        axes = len(self.stride)
        y = torch.convolution(
            *(self.x, c, None, self.stride, self.padding, self.dilation, False, [0] * axes, self.groups)
        )
        return _rowwise(y, self.e)


class Unfold:
    """`(m, c, *size)` to `(m, c * window, places)` for up to `step` images at a time, in memory of its own.

    A strided view of the padded images is copied, which is faster than `F.unfold`, and knows all dimensions.
    """

    def __init__(
        self,
        like: Tensor,
        step: int,
        window: Sequence[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
    ) -> None:
        c, size = like.shape[1], like.shape[2:]
        padded = [s + 2 * p for s, p in zip(size, padding, strict=True)]
        places = [
            (s - d * (w - 1) - 1) // t + 1
            for s, w, t, d in zip(padded, window, stride, dilation, strict=True)
        ]
        images = like.new_zeros((step, c, *padded))
        self._inner = images
        for axis, (s, p) in enumerate(zip(size, padding, strict=True)):
            self._inner = self._inner.narrow(axis + 2, p, s)
        steps = images.stride()
        self._view = images.as_strided(
            (step, c, *window, *places),
            (
                *steps[:2],
                *(step * d for step, d in zip(steps[2:], dilation, strict=True)),
                *(step * t for step, t in zip(steps[2:], stride, strict=True)),
            ),
        )
        self._columns = like.new_empty(self._view.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """The columns of some images; the next call overwrites them."""
        m, axes = x.shape[0], x.dim() - 2
        self._inner[:m].copy_(x)
        columns = self._columns[:m].copy_(self._view[:m])
        return columns.flatten(2 + axes).flatten(1, 1 + axes)


class Lookup(Record):
    """An embedding: indices `(n, T)` and output gradients `(n, T, d)`; the gradient is `(V, d)`, sparse."""

    def __init__(self, indices: Tensor, e: Tensor, rows: int, padding: int | None) -> None:
        if padding is not None:
            e = e * (indices != padding).unsqueeze(2)
        self.indices, self.e, self.rows = indices, e, rows
        self.n = indices.shape[0]
        self._touched: tuple[Tensor, Tensor, Tensor] | None = None

    def formula(self, per_coordinate: bool) -> str:
        return "sums over the touched rows"

    def tensors(self) -> Sequence[Tensor]:
        return (self.indices, self.e)

    def touched(self) -> tuple[Tensor, Tensor, Tensor]:
        """Example, row and gradient of every row that an example touches, each once."""
        if self._touched is None:
            first = torch.arange(self.n, device=self.e.device).unsqueeze(1) * self.rows
            keys, inverse = torch.unique((first + self.indices).view(-1), return_inverse=True)
            total = torch.zeros((len(keys), self.e.shape[2]), dtype=self.e.dtype, device=self.e.device)
            total.index_add_(0, inverse, self.e.reshape(-1, self.e.shape[2]))
            self._touched = (keys // self.rows, keys % self.rows, total)
        return self._touched

    def materialize(self, rows: slice | Tensor) -> Tensor:
        e, indices = self.e[rows], self.indices[rows]
        out = torch.zeros((e.shape[0], self.rows, e.shape[2]), dtype=e.dtype, device=e.device)
        return out.scatter_add_(1, indices.unsqueeze(2).expand_as(e), e)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        e = self.e * weights.view(-1, 1, 1)
        if fresh:
            out.zero_()
        out.index_add_(0, self.indices.reshape(-1), e.reshape(-1, e.shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        return self.e.dtype

    def kept(self, rows: Tensor) -> "Lookup":
        return Lookup(self.indices[rows], self.e[rows], self.rows, None)

    def squares(self) -> Tensor:
        example, _, total = self.touched()
        return self._per_example(example, squared_norms(total))

    def products(self, c: Tensor) -> Tensor:
        example, row, total = self.touched()
        return self._per_example(example, _rowwise(total, c[row]))

    def scaled_squares(self, c: Tensor | None, s: Tensor, constant: float | None) -> Tensor:
        example, row, total = self.touched()
        scale = s[row]
        if c is None or constant is None:
            return self._per_example(example, squared_norms(total / scale))
        near = c[row] / scale
        # On the touched rows |(g - c)/s|^2 directly; everywhere else it is |c/s|^2, the same for all.
        changed = squared_norms(total / scale - near) - squared_norms(near)
        return self._per_example(example, changed) + constant

    def _per_example(self, example: Tensor, values: Tensor) -> Tensor:
        return torch.zeros(self.n, dtype=torch.float64, device=self.e.device).index_add_(0, example, values)


def add_weighted_sum(records: list[Record], weights: Tensor, out: Tensor, *, fresh: bool) -> None:
    """Adds `sum_i weights[i] G_i` over some records of one weight to `out`, or overwrites it if `fresh`."""
    for record in records:
        if record.dtype == out.dtype:
            record.add_weighted_sum(weights.to(out.dtype), out, fresh)
        else:
            part = torch.empty_like(out, dtype=record.dtype)
            record.add_weighted_sum(weights.to(part.dtype), part, True)
            out.copy_(part) if fresh else out.add_(part)
        fresh = False


def merged(records: list[Record]) -> list[Record]:
    """Several uses of one weight in as few records as give exact cross terms."""
    if len(records) == 1:
        return records
    result: list[Record] = []
    for transposed in (False, True):
        outer = [r for r in records if isinstance(r, Outer) and r.transposed == transposed]
        if len(outer) > 1:
            a, e = torch.cat([r.a for r in outer], 1), torch.cat([r.e for r in outer], 1)
            outer = [Outer(a, e, transposed)]
        result += outer
    lookups = [r for r in records if isinstance(r, Lookup)]
    if len(lookups) > 1:
        indices, e = torch.cat([r.indices for r in lookups], 1), torch.cat([r.e for r in lookups], 1)
        lookups = [Lookup(indices, e, lookups[0].rows, None)]
    dense = [r for r in records if isinstance(r, Dense)]
    if len(dense) > 1:
        dense = [Dense(torch.stack([r.gradients for r in dense]).sum(0))]
    return [*result, *lookups, *dense, *(r for r in records if isinstance(r, Convolution))]


def whitened_squares(gradients: Tensor, p: Tensor, geometry: Geometry) -> Tensor:
    """`|(G_i - c)/s|^2` of gradients in hand, float64."""
    s = geometry.scale[p]
    if geometry.center_of(p) is None and not isinstance(s, Tensor):
        squares = squared_norms(gradients)
        return squares if s == 1.0 else squares / s / s
    return squared_norms(geometry.whiten(p, gradients))


def squared_whitened_norms(records: list[Record], p: Tensor, geometry: Geometry) -> Tensor:
    """`|(G_i - c)/s|^2` of the sum of some records of one weight, float64."""
    s, c = geometry.scale[p], geometry.center_of(p)
    full = isinstance(s, Tensor) and s.dim() > 0
    center = None if c is None else torch.as_tensor(c, dtype=p.dtype, device=p.device).expand_as(p)
    total: Tensor | None = None
    if len(records) == 1 and records[0].whitened is not None:
        return records[0].whitened
    constant = None if center is None else geometry.center_square(p)
    if len(records) == 1:
        (record,) = records
        if full:
            assert isinstance(s, Tensor)
            total = record.scaled_squares(center, s, constant)
        else:
            total = _expanded(record, center, float(s), constant)
    elif not full and center is None:
        total = _tied_squares(records, float(s))
    if total is None:
        return _direct(records, p, geometry, slice(None))
    if constant is not None:
        near = total < CANCELLATION * constant
        if near.any():
            total[near] = _direct(records, p, geometry, near.nonzero().squeeze(1))
    return total


def _expanded(record: Record, center: Tensor | None, s: float, constant: float | None) -> Tensor | None:
    """`(|G|^2 - 2 <G, c>) / s^2 + |c/s|^2` where the record has formulas for its parts."""
    squares = record.squares()
    if squares is None or center is None or constant is None:
        return squares if squares is None or s == 1.0 else squares / s / s
    products = record.products(center)
    return None if products is None else (squares - 2 * products) / s / s + constant


def _tied_squares(records: list[Record], s: float) -> Tensor | None:
    """A tied embedding and output layer: both squares and twice their product, without V x d matrices."""
    if len(records) != 2:
        return None
    head, table = records
    if not isinstance(head, Outer) or not isinstance(table, Lookup) or head.transposed:
        return None
    first = head.squares()
    if first is None:
        first = _chunked_squares(head)
    cross = torch.empty(head.n, dtype=torch.float64, device=head.a.device)
    for i in range(head.n):
        # sum_{t,u} <table.e_t, head.a_u> head.e_u[index_t]
        cross[i] = ((head.a[i] @ table.e[i].t()) * head.e[i][:, table.indices[i]]).double().sum()
    return (first + table.squares() + 2 * cross) / s / s


def _chunked_squares(record: Record) -> Tensor:
    size = record.materialize(slice(0, 1)).numel()
    step = chunk_length(size)
    return torch.cat(
        [squared_norms(record.materialize(slice(i, i + step))) for i in range(0, record.n, step)]
    )


def _direct(records: list[Record], p: Tensor, geometry: Geometry, rows: slice | Tensor) -> Tensor:
    """The same by materializing the gradients of this one weight, in chunks of examples."""
    n = records[0].n
    index = torch.arange(n, device=p.device)[rows]
    step = chunk_length(p.numel())
    parts = [torch.zeros(0, dtype=torch.float64, device=p.device)]
    for start in range(0, len(index), step):
        chunk: slice | Tensor = index[start : start + step]
        if isinstance(rows, slice):
            chunk = slice(start, start + step)
        gradient = records[0].materialize(chunk)
        for record in records[1:]:
            gradient = gradient + record.materialize(chunk)
        parts.append(whitened_squares(gradient, p, geometry))
    return torch.cat(parts)


def _rowwise(x: Tensor, y: Tensor) -> Tensor:
    """`sum x[i] y[i]` over all but the first axis, added up in float64."""
    n = x.shape[0]
    products = (x * y).reshape(n, -1) if x.numel() else x.new_zeros(n, 1)
    if products.dtype == torch.float64:
        return products.sum(1)
    width = products.shape[1]
    blocks = width // 512
    total = products[:, : blocks * 512].reshape(n, blocks, 512).sum(2).double().sum(1)
    return total + products[:, blocks * 512 :].sum(1).double()


def _gram_product(a: Tensor, e: Tensor) -> Tensor:
    """`<a a^T, e e^T>` per example, which is `|sum_t e_t a_t^T|^2`; symmetric, so 3/4 of it is enough."""
    half = a.shape[1] // 2
    if a.shape[1] < 64 or a.shape[1] % 2:
        return _rowwise(torch.bmm(a, a.transpose(1, 2)), torch.bmm(e, e.transpose(1, 2)))
    a1, a2, e1, e2 = a[:, :half], a[:, half:], e[:, :half], e[:, half:]
    total = torch.zeros(a.shape[0], dtype=torch.float64, device=a.device)
    for u, v, f, g, times in ((a1, a1, e1, e1, 1), (a1, a2, e1, e2, 2), (a2, a2, e2, e2, 1)):
        total += times * _rowwise(torch.bmm(u, v.transpose(1, 2)), torch.bmm(f, g.transpose(1, 2)))
    return total
