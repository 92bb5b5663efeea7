"""Autograd functions that keep what a weight's gradient needs, and do not compute it.

Each has the value of the function that it stands for. Its backward hands the input and the output's
gradient to `put` and returns the input's gradient only. The weight arrives detached; `anchor`, a number that
requires a gradient, makes autograd call the backward even where no input needs one. The recorder is still
active while autograd runs, for forwards that are run again there; it need not see these functions.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping.general import Call

aten = torch.ops.aten


def _unseen(backward: Callable[..., Any]) -> Callable[[Any, Tensor], Any]:
    @wraps(backward)
    def unseen(ctx: Any, e: Tensor) -> Any:
        saved = ctx.saved_tensors  # under checkpointing this runs a forward, which the recorder must see
        with torch._C.DisableTorchFunction():
            return backward(ctx, e, *saved)

    return unseen


def _cast(*tensors: Tensor | None) -> list[Any]:
    """Casts the arguments of a matrix product as autocast would."""
    device = next(t for t in tensors if t is not None).device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [None if t is None else t.to(dtype) for t in tensors]


def _with_bias(
    y: Tensor, b: Tensor | None, x: Tensor, keeps: Callable[[Tensor, Tensor], bool]
) -> tuple[Tensor, Tensor | None]:
    """Returns an output with its bias, and without it if that is to be kept; users may change the first."""
    if not keeps(x, y):
        return y if b is None else y.add_(b), None
    return y.clone() if b is None else y + b, y


def _linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Computes `F.linear`, never as a view: users may change the result in place."""
    if b is None or x.dim() < 3 or not x.is_contiguous():
        y = F.linear(x, w, b)
        return y.clone() if y._is_view() else y
    y = x.new_empty((*x.shape[:-1], w.shape[0]))
    torch.addmm(b, x.view(-1, x.shape[-1]), w.t(), out=y.view(-1, w.shape[0]))
    return y


class Linear(torch.autograd.Function):
    """`F.linear`; `put(input, output gradient, output without bias if it keeps it)`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        anchor: Tensor,
        put: Callable[..., None],
        keeps: Callable[[Tensor, Tensor], bool] | None,
    ) -> Tensor:
        ctx.dtype = x.dtype
        x, w, b = _cast(x, w, b)
        if keeps is None:
            y, kept = _linear(x, w, b), None
        else:
            y, kept = _with_bias(F.linear(x, w), b, x, keeps)
        ctx.save_for_backward(x, w, kept)
        ctx.put = put
        return y

    @staticmethod
    @_unseen
    def backward(ctx: Any, e: Tensor, x: Tensor, w: Tensor, y: Tensor | None) -> Any:
        ctx.put(x.detach(), e, None if y is None else y.detach())
        return ((e @ w).to(ctx.dtype) if ctx.needs_input_grad[0] else None), None, None, None, None, None


class Convolve(torch.autograd.Function):
    """`torch.convolution`; `put(input, output gradient, output without bias if it keeps it)`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        anchor: Tensor,
        settings: Any,
        put: Callable[..., None],
        keeps: Callable[[Tensor, Tensor], bool] | None,
    ) -> Tensor:
        ctx.dtype = x.dtype
        x, w, b = _cast(x, w, b)
        stride, padding, dilation, groups = settings
        rest = (stride, padding, dilation, False, [0] * len(stride), groups)
        if keeps is None:
            y, kept = torch.convolution(x, w, b, *rest), None
        else:
            bias = None if b is None else b.view(-1, *[1] * len(stride))
            y, kept = _with_bias(torch.convolution(x, w, None, *rest), bias, x, keeps)
        ctx.save_for_backward(x, w, kept)
        ctx.put, ctx.settings = put, settings
        return y

    @staticmethod
    @_unseen
    def backward(ctx: Any, e: Tensor, x: Tensor, w: Tensor, y: Tensor | None) -> Any:
        stride, padding, dilation, groups = ctx.settings
        ctx.put(x.detach(), e, None if y is None else y.detach())
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = aten.convolution_backward(
                *(e, x, w, None, stride, padding, dilation, False, [0] * len(stride), groups),
                (True, False, False),
            )[0].to(ctx.dtype)
        return gradient, None, None, None, None, None, None


class Embed(torch.autograd.Function):
    """`torch.embedding`; `put(indices, output gradient)`."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, indices: Tensor, anchor: Tensor, put: Callable[..., None]) -> Tensor:
        ctx.indices, ctx.put = indices, put
        return torch.embedding(w, indices)

    @staticmethod
    @_unseen
    def backward(ctx: Any, e: Tensor) -> Any:
        ctx.put(ctx.indices, e)
        return None, None, None, None


class LayerNorm(torch.autograd.Function):
    """`F.layer_norm`; `put(normalised input, output gradient)`, or `put(None, None, gw, gb)` per example.

    With the examples on the first axis and one thread, the kernel is called for one example at a time, in
    the cache, and returns the example's weight gradients with its input gradient. One example is too
    little work for several threads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: list[int],
        w: Tensor | None,
        b: Tensor | None,
        eps: float,
        anchor: Tensor,
        examples: Callable[[Tensor], int],
        put: Callable[..., None],
    ) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, shape, w, b, eps)
        ctx.save_for_backward(x, mean, rstd, w, b)
        ctx.shape, ctx.examples, ctx.put = shape, examples, put
        return y

    @staticmethod
    @_unseen
    def backward(
        ctx: Any, e: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor | None, b: Tensor | None
    ) -> Any:
        shape, wants = ctx.shape, ctx.needs_input_grad[0]
        n = ctx.examples(e)
        places = e.numel() // max(1, n * torch.Size(shape).numel())
        gradient = None
        if n == 0 or places == 1 or torch.get_num_threads() > 1:
            if wants:
                gradient = aten.native_layer_norm_backward(
                    e, x, shape, mean, rstd, w, b, (True, False, False)
                )[0]
            ctx.put((x - mean).mul_(rstd), e)
        else:
            lead = [n, places]
            xs, es = x.reshape(*lead, *shape), e.reshape(*lead, *shape)
            ones = [1] * len(shape)
            ms, rs = mean.reshape(*lead, *ones), rstd.reshape(*lead, *ones)
            gradient = torch.empty_like(es) if wants else None
            gw = torch.empty((n, *shape), dtype=es.dtype, device=e.device) if w is not None else None
            gb = torch.empty((n, *shape), dtype=es.dtype, device=e.device) if b is not None else None
            mask = (wants, gw is not None, gb is not None)
            for i in range(n):
                parts = aten.native_layer_norm_backward(es[i], xs[i], shape, ms[i], rs[i], w, b, mask)
                for target, part in zip((gradient, gw, gb), parts, strict=True):
                    if target is not None:
                        target[i] = part
            ctx.put(None, None, gw, gb)
            gradient = None if gradient is None else gradient.view_as(x)
        return gradient, None, None, None, None, None, None, None


class GroupNorm(torch.autograd.Function):
    """`F.group_norm`; `put(gw, gb)` per example.

    `(n, C)` with G groups is `(1, n C)` with n G groups, so the kernel itself returns per-example gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        groups: int,
        w: Tensor | None,
        b: Tensor | None,
        eps: float,
        anchor: Tensor,
        put: Callable[..., None],
    ) -> Tensor:
        n, c = x.shape[:2]
        size = x.shape[2:].numel()
        x = x.contiguous()
        y, mean, rstd = aten.native_group_norm(x, w, b, n, c, size, groups, eps)
        ctx.save_for_backward(x, mean, rstd, w)
        ctx.sizes, ctx.put, ctx.parts = (n, c, size, groups), put, (w is not None, b is not None)
        return y  # type: ignore[no-any-return]

    @staticmethod
    @_unseen
    def backward(ctx: Any, e: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor | None) -> Any:
        n, c, size, groups = ctx.sizes
        gradient, gw, gb = aten.native_group_norm_backward(
            *(e.contiguous().view(1, n * c, size), x.view(1, n * c, size)),
            *(mean.view(1, n * groups), rstd.view(1, n * groups), None if w is None else w.repeat(n)),
            *(1, n * c, size, n * groups, (ctx.needs_input_grad[0], *ctx.parts)),
        )
        has_weight, has_bias = ctx.parts
        ctx.put(gw.view(n, c) if has_weight else None, gb.view(n, c) if has_bias else None)
        return (gradient.view_as(x) if ctx.needs_input_grad[0] else None), None, None, None, None, None, None


class Expand(torch.autograd.Function):
    """A copy of a weight for each example, as a view; `put(gradient of each copy)`."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, anchor: Tensor, n: int, shape: tuple[int, ...], put: Callable[..., None]
    ) -> Tensor:
        ctx.put, ctx.shape = put, p.shape
        return p.reshape(1, *shape).expand(n, *shape)

    @staticmethod
    @_unseen
    def backward(ctx: Any, e: Tensor) -> Any:
        ctx.put(e.reshape(e.shape[0], *ctx.shape))
        return None, None, None, None, None


class Apply(torch.autograd.Function):
    """Any call; `put(call, its output with a graph down to the weights at some places, output gradient)`."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, call: Call, weights: list[int], put: Callable[..., None], *data: Tensor
    ) -> Any:
        ctx.save_for_backward(*data)
        ctx.call, ctx.weights, ctx.put = call.without_data(), weights, put
        return call({})

    @staticmethod
    @_unseen
    def backward(ctx: Any, e: Tensor, *data: Tensor) -> Any:
        needed = ctx.needs_input_grad[4:]
        inputs = [
            t.detach().requires_grad_() if need else t.detach() for t, need in zip(data, needed, strict=True)
        ]
        call = ctx.call.on(inputs)
        output = call.differentiable(ctx.weights)
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(
            torch.autograd.grad(output[0], wanted, e, retain_graph=True, allow_unused=True) if wanted else ()
        )
        ctx.put(call, output, e)
        return None, None, None, None, *(next(found) if need else None for need in needed)
