"""The record of a convolution, and the windows of its input."""

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas._numerics.sums import row_products
from adamas.engines.bookkeeping.certificate import Squares, lengths, of_products
from adamas.engines.bookkeeping.gram import of_grams
from adamas.engines.bookkeeping.records import CHUNK, CHUNKED, Record, chunk_length
from adamas.geometry import Value

aten = torch.ops.aten

# Windows are copied with the channels last if contiguous stretches become at least this many times longer;
# below that, transposing the images costs as much as it saves.
_LONG = 8

# The windows of one image are copied all at once if they hold at most this many numbers.
_LARGE = 4 * CHUNK


class Convolution(Record):
    """A convolution: inputs `(n, ci, *size)` and output gradients `(n, co, *out)`."""

    # Its activations are a small part of those that a model holds, and its gradients are costly.
    most_kept = 5

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

    def _with(self, x: Tensor, e: Tensor) -> "Convolution":
        return Convolution(x, e, self.shape, self.stride, self.padding, self.dilation, self.groups)

    def kept(self, rows: slice | Tensor) -> "Convolution":
        return self.marked(self._with(self.x[rows], self.e[rows]), rows)

    def wide(self, rows: Tensor) -> "Convolution":
        return self._with(self.x[rows].double(), self.e[rows].double())

    def terms(self, s: Value) -> Tensor | None:
        if self.e.shape[2:].numel() == 1:
            return None
        # A pixel is in this many windows at most.
        windows = math.prod(-(-k // t) for k, t in zip(self.shape[2:], self.stride, strict=True))
        least = float(s.amin()) if isinstance(s, Tensor) else s
        return lengths(self.x).mul_(lengths(self.e)).mul_(math.sqrt(windows) / least)

    def close_terms(self, s: Tensor) -> Tensor | None:
        if self.e.shape[2:].numel() == 1:
            return None
        # sum_t |e_to x_ti| <= |e_o| |x_i| over the pixels, for each coordinate.
        by_group = (self.n, self.groups, -1)
        of_x, of_e = (t.flatten(2).square().sum(2).view(by_group) for t in (self.x, self.e))
        matrix = s.pow(-2).to(of_e.dtype).flatten(2).sum(2).view(self.groups, -1, self.shape[1])
        by_input = torch.einsum("ngo,goi->ngi", of_e, matrix)
        return row_products(by_input, of_x).sqrt_()

    def chunk(self) -> int:
        """Returns the number of examples whose unfolded images and gradients fit in the cache."""
        unfolded = self.x.shape[1] * math.prod(self.shape[2:]) * self.e.shape[2:].numel()
        return min(max(1, self.n), chunk_length(max(unfolded, math.prod(self.shape))))

    def materialize(self, rows: slice | Tensor) -> Tensor:
        return self.materialize_into(self.empty(self.x[rows].shape[0], by_rows=False), rows)

    def empty(self, count: int, *, by_rows: bool) -> Tensor:
        """Allocates a buffer for gradients, in the memory order in which they are computed fastest.

        The windows follow the input channels, or the output channels are last, unless `by_rows`.
        """
        co, ci, *window = self.shape
        if self._unfold.channels_last:
            return self._empty(count, co, *window, ci).movedim(-1, 2)
        if by_rows or self.groups > 1:
            return self._empty(count, co, ci, *window)
        return self._empty(count, ci, *window, co).movedim(-1, 1)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.e.device)

    def materialize_into(self, out: Tensor, rows: slice | Tensor) -> Tensor:
        """Writes the gradients of some examples into a buffer: output gradient times unfolded image."""
        x, e = self.x[rows], self.e[rows]
        g, co, step = self.groups, self.shape[0], self.chunk()
        for i in range(0, x.shape[0], step):
            part = out[i : i + step]
            m = part.shape[0]
            for band, columns in self._unfold(x[i : i + step]):
                gradients = e[i : i + step, :, band].reshape(m * g, co // g, -1)
                if self._unfold.channels_last:
                    product, target = (gradients, columns), part.movedim(2, -1).flatten(2)
                elif part.is_contiguous():
                    columns = columns.view(m * g, -1, columns.shape[2])
                    product, target = (gradients, columns.transpose(1, 2)), part.view(m * g, co // g, -1)
                else:
                    product = (columns, gradients.transpose(1, 2))
                    target = part.movedim(1, -1).flatten(1, -2)
                torch.baddbmm(target, *product, beta=1 if band.start else 0, out=target)
        return out

    @functools.cached_property
    def _unfold(self) -> "Unfold":
        return Unfold(
            *(self.x, self.chunk(), self.shape[2:], self.stride, self.padding, self.dilation, self.groups)
        )

    def forget_windows(self) -> None:
        self.__dict__.pop("_unfold", None)

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
        """Tells whether the Gram matrix of the padded pixels is smaller than the weights: few pixels."""
        if self.groups != 1 or len(self.stride) != 2:
            return False
        pixels = math.prod(s + 2 * p for s, p in zip(self.x.shape[2:], self.padding, strict=True))
        places = self.e.shape[2:].numel()
        window = math.prod(self.shape[2:])
        work = pixels**2 * self.x.shape[1] + places**2 * (self.shape[0] + 2 * window)
        return work < 0.4 * places * math.prod(self.shape)  # measured: below it the unfolded chunks win

    def squares(self) -> Squares | None:
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
        window = math.prod(self.shape[2:])
        entries = of_products(self.shape[1], self.dtype) + of_products(window, self.dtype)
        grams = inputs.view(n, h * w, h * w), torch.bmm(e.transpose(1, 2), e)
        return of_grams([(0, 0, *grams)], h * w, (entries, of_products(self.shape[0], self.dtype)))

    def with_rows_scaled(self, factors: Tensor) -> "Convolution":
        """Returns the record of the same gradients, each row times a factor."""
        return self._with(self.x, self.e * factors.view(-1, *[1] * len(self.stride)))

    def row_products(self, y: Tensor) -> Tensor:
        """Computes `sum_t e_t y_t` for each row: `(n, co)`, float64."""
        return (self.e * y).flatten(2).sum(2).double()

    def row_sums(self) -> Tensor:
        """Sums each row of the gradients, without groups: `(n, co)`, float64."""
        window = self.x.new_ones((1, 1, *self.shape[2:]))
        axes = len(self.stride)
        sums = torch.convolution(
            *(self.x.sum(1, keepdim=True), window, None, self.stride, self.padding, self.dilation),
            *(False, [0] * axes, 1),
        )
        return self.row_products(sums)

    def product_error(self) -> float:
        return of_products(math.prod(self.shape[1:]), self.dtype)

    def products(self, c: Tensor) -> Tensor:
        axes = len(self.stride)
        y = torch.convolution(
            *(self.x, c, None, self.stride, self.padding, self.dilation, False, [0] * axes, self.groups)
        )
        return row_products(y, self.e)


class Unfold:
    """Copies the windows of up to `step` images at a time into its own memory, large images in bands.

    Copying from a strided view of the padded images is faster than `F.unfold`, and works in any number of
    dimensions. With few pixels and many channels the channels are last, so that a window's rows are long
    stretches of memory: `(m, places, window * c)`. Otherwise `(m, c * window, places)`.
    """

    def __init__(
        self,
        like: Tensor,
        step: int,
        window: Sequence[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> None:
        c, size = like.shape[1], like.shape[2:]
        self.channels_last = groups == 1 and window[-1] * c > _LONG * size[-1]
        padded = [s + 2 * p for s, p in zip(size, padding, strict=True)]
        places = [
            (s - d * (w - 1) - 1) // t + 1
            for s, w, t, d in zip(padded, window, stride, dilation, strict=True)
        ]
        first = 1 if self.channels_last else 2
        images = like.new_zeros((step, *padded, c) if self.channels_last else (step, c, *padded))
        self._inner = images
        for axis, (s, p) in enumerate(zip(size, padding, strict=True)):
            self._inner = self._inner.narrow(axis + first, p, s)
        steps = images.stride()[first : first + len(size)]
        in_window = [step * d for step, d in zip(steps, dilation, strict=True)]
        to_next = [step * t for step, t in zip(steps, stride, strict=True)]
        if self.channels_last:
            shape = (step, *places, *window, c)
            strides = (images.stride(0), *to_next, *in_window, 1)
        else:
            shape = (step, c, *window, *places)
            strides = (*images.stride()[:2], *in_window, *to_next)
        view = images.as_strided(shape, strides)
        self._axis = 1 if self.channels_last else 2 + len(size)
        one = math.prod(shape[1:]) // max(1, places[0])
        height = places[0] if one * places[0] <= _LARGE else max(1, CHUNK // one)
        self._bands = [slice(i, min(i + height, places[0])) for i in range(0, places[0], height)]
        self._views = [view.narrow(self._axis, band.start, band.stop - band.start) for band in self._bands]
        self._columns = like.new_empty(step * one * min(height, places[0]))

    def __call__(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yields bands of places along the first axis, and their columns, which the next band overwrites."""
        m = x.shape[0]
        self._inner[:m].copy_(x.movedim(1, -1) if self.channels_last else x)
        for band, view in zip(self._bands, self._views, strict=True):
            shape = (m, *view.shape[1:])
            columns = self._columns[: math.prod(shape)].view(shape).copy_(view[:m])
            places = columns.shape[self._axis : self._axis + x.dim() - 2].numel()
            yield band, columns.view((m, places, -1) if self.channels_last else (m, -1, places))
