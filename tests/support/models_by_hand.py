"""Shared by tests: helpers of `models_by_hand`."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from adamas import Geometry
from adamas.engines import Bookkeeping, trainable_parameters

B = 5  # examples; neither the size of a probe nor a width of a layer


TOLERANCE = 1e-9


Gradients = list[dict[Tensor, Tensor]]


Batch = tuple[Tensor, ...]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """A different, non-linear loss for each example; `batch[1]` is the example's own factor."""
    out = model(batch[0]).flatten(1)
    return batch[1] * (out.square().sum(1) + (3 * out).sin().sum(1))


def one_by_one(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] = loss) -> Gradients:
    params = [p for p in model.parameters() if p.requires_grad]
    result = []
    for i in range(len(batch[0])):
        value = loss(model, tuple(x[i : i + 1] for x in batch)).sum()
        gradients = torch.autograd.grad(value, params, allow_unused=True)
        zipped = zip(params, gradients, strict=True)
        result.append({p: torch.zeros_like(p) if g is None else g.detach() for p, g in zipped})
    return result


def whitened_norms(gradients: Gradients, geometry: Geometry) -> Tensor:
    totals = []
    for gradient in gradients:
        total = 0.0
        for p, g in gradient.items():
            c = 0.0 if geometry.center is None else geometry.center.get(p, 0.0)
            total += float((((g.double() - c) / geometry.scale[p]) ** 2).sum())
        totals.append(math.sqrt(total))
    return torch.tensor(totals, dtype=torch.float64)


def summed(gradients: Gradients, weights: Tensor) -> dict[Tensor, Tensor]:
    total = {p: torch.zeros_like(g) for p, g in gradients[0].items()}
    for w, gradient in zip(weights.tolist(), gradients, strict=True):
        if w:
            for p, g in gradient.items():
                total[p] += w * g
    return total


def close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape
    if not expected.numel():
        return
    scale = 1 + float(expected.abs().max())
    worst = float((actual - expected).abs().max())
    assert worst <= tolerance * scale, f"off by {worst:g} at size {scale:g}"


def ball(model: nn.Module, radius: float = 1.0) -> Geometry:
    return Geometry.ball(trainable_parameters(model).values(), radius)


def geometries(model: nn.Module, seed: int = 7) -> list[Geometry]:
    """A flat ball; a centre with a scale per coordinate; a centre with one scale for each parameter."""
    draw = torch.Generator().manual_seed(seed)
    params = list(trainable_parameters(model).values())

    def center() -> dict[Tensor, Tensor]:
        return {p: 0.3 * torch.randn(p.shape, generator=draw, dtype=p.dtype) for p in params}

    scale = {p: 0.5 + torch.rand(p.shape, generator=draw, dtype=p.dtype) for p in params}
    return [
        ball(model, 0.8),
        Geometry(center(), scale),
        Geometry(center(), {p: 0.7 + 0.1 * i for i, p in enumerate(params)}),
    ]


def some_weights(n: int, seed: int = 8) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    weights = 0.2 + torch.rand(n, generator=draw, dtype=torch.float64)
    if n > 2:
        weights[1] = 0.0
    return weights


def assert_exact(
    model: nn.Module,
    batch: Batch,
    loss: Callable[..., Tensor] = loss,
    gradients: Gradients | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Norms in three geometries, each from a new engine, and the weighted sum from each."""
    expected = one_by_one(model, batch, loss) if gradients is None else gradients
    weights = some_weights(len(batch[0]))
    for geometry in geometries(model):
        built = Bookkeeping(model, loss, batch)
        close(built.norms(geometry), whitened_norms(expected, geometry), tolerance)
        sums = built.weighted_sum(weights)
        total = summed(expected, weights)
        assert set(sums) == set(total)
        for p, value in total.items():
            close(sums[p], value, tolerance)


class Through(nn.Module):
    """Holds layers and parameters by name and runs a function of them."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def made(build: Callable[[], tuple[nn.Module, Tensor]], seed: int = 0) -> tuple[nn.Module, Batch]:
    """Model and batch in float64, with parameters that are no ones and zeros."""
    torch.manual_seed(seed)
    model, x = build()
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model, (x, 0.5 + torch.rand(len(x), dtype=torch.float64))


def tokens(n: int = B, length: int = 9, words: int = 20) -> Tensor:
    x = torch.randint(words, (n, length))
    x[:, 3], x[:, 5] = x[:, 1], 0  # repeated words, and the padding
    return x


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {}


def two_layers(*shape: int, d: int = 7, k: int = 9) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(d, k), nn.Tanh(), nn.Linear(k, 4)), torch.randn(*shape, d)


CASES["mlp"] = lambda: two_layers(B)


CASES["linear without bias"] = lambda: (nn.Linear(4, 3, bias=False), torch.randn(B, 4))


CASES["linear T chunks"] = lambda: two_layers(B, 11)


CASES["linear T gram"] = lambda: two_layers(B, 3, d=40, k=50)


CASES["linear T gram in halves"] = lambda: two_layers(B, 64, d=150, k=160)


CASES["linear T = B"] = lambda: two_layers(B, B)


CASES["linear T = 3, the size of the probe"] = lambda: two_layers(B, 3)


CASES["linear T = 1"] = lambda: two_layers(B, 1)


CASES["linear two axes of time"] = lambda: two_layers(B, 2, 3)


CASES["used twice"] = lambda: (
    Through(lambda m, x: m.o(m.l(m.l(x).tanh())), l=nn.Linear(8, 8), o=nn.Linear(8, 4)),
    torch.randn(B, 8),
)


CASES["used twice with T"] = lambda: (
    Through(lambda m, x: m.o(m.l(m.l(x).tanh()).mean(1)), l=nn.Linear(8, 8), o=nn.Linear(8, 4)),
    torch.randn(B, 4, 8),
)


CASES["used twice, T chunks and no T"] = lambda: (
    Through(lambda m, x: m.o(m.l(m.l(x).tanh().mean(1))), l=nn.Linear(8, 8), o=nn.Linear(8, 4)),
    torch.randn(B, 11, 8),
)


CASES["used twice, T gram and no T"] = lambda: (
    Through(lambda m, x: m.o(m.l(m.l(x).tanh().mean(1))), l=nn.Linear(40, 40), o=nn.Linear(40, 4)),
    torch.randn(B, 3, 40),
)


CASES["time-first linear, T = B"] = lambda: (
    Through(lambda m, x: m.o(m.l(x.transpose(0, 1)).tanh()).mean(0), l=nn.Linear(7, 9), o=nn.Linear(9, 4)),
    torch.randn(B, B, 7),
)


CASES["flattened time-first linear"] = lambda: (
    Through(
        lambda m, x: m.l(x.transpose(0, 1).reshape(-1, 7)).tanh().view(4, -1, 3).transpose(0, 1),
        l=nn.Linear(7, 3),
    ),
    torch.randn(B, 4, 7),
)


def conv(layer: nn.Module, *size: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    def build() -> tuple[nn.Module, Tensor]:
        own, x = copy.deepcopy(layer), torch.randn(B, *size)
        width = own(x[:1]).numel()
        return nn.Sequential(own, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3)), x

    return build


CASES |= {
    "conv2d padding": conv(nn.Conv2d(4, 6, 3, padding=1), 4, 6, 6),
    "conv2d stride": conv(nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), 4, 6, 6),
    "conv2d stride that leaves a rest": conv(nn.Conv2d(2, 3, 3, stride=3), 2, 7, 8),
    "conv2d dilation": conv(nn.Conv2d(4, 6, 3, dilation=2, padding=2), 4, 6, 6),
    "conv2d groups": conv(nn.Conv2d(4, 6, 3, groups=2, padding=1), 4, 6, 6),
    "conv2d depthwise": conv(nn.Conv2d(4, 8, 3, groups=4), 4, 5, 5),
    "conv2d same, odd": conv(nn.Conv2d(4, 6, 3, padding="same"), 4, 6, 6),
    "conv2d same, even": conv(nn.Conv2d(4, 6, 4, padding="same"), 4, 6, 6),
    "conv2d same, even and odd": conv(nn.Conv2d(4, 6, (2, 3), dilation=(3, 2), padding="same"), 4, 7, 6),
    "conv2d valid": conv(nn.Conv2d(4, 6, 3, padding="valid"), 4, 6, 6),
    "conv2d reflect": conv(nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), 4, 6, 6),
    "conv2d mixed": conv(nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(0, 2), dilation=(1, 2)), 4, 8, 8),
    "conv2d pixel gram": conv(nn.Conv2d(64, 64, 3, padding=1), 64, 4, 4),
    "conv2d pixel gram, stride": conv(nn.Conv2d(64, 64, 3, stride=2, padding=1), 64, 3, 3),
    "conv2d pixel gram, dilated": conv(nn.Conv2d(96, 96, 3, padding=(2, 1), dilation=(2, 1)), 96, 4, 3),
    "conv2d pixel gram, same and even": conv(nn.Conv2d(64, 64, 2, padding="same"), 64, 3, 3),
    "conv1d": conv(nn.Conv1d(4, 6, 3, stride=2, padding=1), 4, 8),
    "conv1d same, even": conv(nn.Conv1d(4, 6, 2, padding="same", groups=2), 4, 8),
    "conv3d": conv(nn.Conv3d(2, 3, (3, 2, 1), padding=1, stride=(1, 2, 1)), 2, 4, 4, 3),
    "transposed conv2d": conv(nn.ConvTranspose2d(4, 3, 3, stride=2), 4, 4, 4),
    "transposed conv1d groups": conv(nn.ConvTranspose1d(4, 6, 3, groups=2), 4, 5),
}


CASES["conv used twice"] = lambda: (
    Through(
        lambda m, x: m.o(m.c(m.c(x).tanh()).mean((2, 3))), c=nn.Conv2d(4, 4, 3, padding=1), o=nn.Linear(4, 3)
    ),
    torch.randn(B, 4, 5, 5),
)


CASES["conv used twice, pixel gram"] = lambda: (
    Through(lambda m, x: m.c(m.c(x).tanh()).mean((2, 3)), c=nn.Conv2d(64, 64, 3, padding=1)),
    torch.randn(B, 64, 3, 3),
)


CASES["conv channels last"] = lambda: (
    nn.Sequential(nn.Conv2d(4, 6, 3), nn.Tanh()).to(memory_format=torch.channels_last),
    torch.randn(B, 4, 6, 6).to(memory_format=torch.channels_last),
)


CASES["embedding"] = lambda: (
    nn.Sequential(nn.Embedding(20, 8), Pool(), nn.Tanh(), nn.Linear(8, 3)),
    tokens(),
)


CASES["embedding, one word"] = lambda: (
    nn.Sequential(nn.Embedding(4, 3), nn.Tanh(), nn.Linear(3, 3)),
    torch.tensor([0, 1, 1, 3, 0]),
)


CASES["embedding padding_idx"] = lambda: (
    nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Tanh(), nn.Linear(8, 3)),
    tokens(),
)


CASES["embedding padding_idx from the end"] = lambda: (
    nn.Sequential(nn.Embedding(6, 8, padding_idx=-1), nn.Tanh(), nn.Linear(8, 3)),
    tokens(words=6),
)


CASES["embedding T = B"] = lambda: (
    nn.Sequential(nn.Embedding(20, 8), nn.Tanh(), nn.Linear(8, 3)),
    tokens(8, 8),
)


CASES["embedding time-first"] = lambda: (
    Through(
        lambda m, x: m.o(m.e(x.t()).tanh()).mean(0), e=nn.Embedding(20, 8, padding_idx=0), o=nn.Linear(8, 3)
    ),
    tokens(8, 8),
)


CASES["embedding used twice"] = lambda: (
    Through(lambda m, x: m.e(x).tanh().sum(1) * m.e(x[:, 2]), e=nn.Embedding(20, 8, padding_idx=0)),
    tokens(),
)


CASES["embedding_bag"] = lambda: (nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3)), tokens())


CASES["tied embedding and head"] = lambda: (
    Through(lambda m, x: F.linear(m.l(m.e(x)).tanh(), m.e.weight), e=nn.Embedding(20, 8), l=nn.Linear(8, 8)),
    tokens(),
)


# Many words and few places: the norm takes the Gram matrix of the head and its product with the touched rows.
CASES["tied embedding and head, gram"] = lambda: (
    Through(
        lambda m, x: F.linear(torch.tanh(m.l(m.e(x))), m.e.weight),
        e=nn.Embedding(60, 40, padding_idx=0),
        l=nn.Linear(40, 40),
    ),
    tokens(length=6, words=60),
)


CASES["tied embedding and head, T = B, padding"] = lambda: (
    Through(
        lambda m, x: F.linear(m.l(m.e(x)).tanh(), m.e.weight, m.b),
        e=nn.Embedding(20, 8, padding_idx=0),
        l=nn.Linear(8, 8),
        b=param(20),
    ),
    tokens(8, 8),
)


def positions(index: Callable[[int], Tensor], length: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (
        Through(
            lambda m, x: m.o((m.e(x) + m.p(index(x.shape[1]))).tanh()),
            e=nn.Embedding(20, 8),
            p=nn.Embedding(12, 8),
            o=nn.Linear(8, 3),
        ),
        tokens(8, length),
    )


CASES["positions (1, T)"] = positions(lambda t: torch.arange(t)[None], 9)


CASES["positions (T,)"] = positions(torch.arange, 9)


CASES["positions (1, T), T = B"] = positions(lambda t: torch.arange(t)[None], 8)


CASES["positions (T,), T = B"] = positions(torch.arange, 8)


def normed(
    layer: Callable[[], nn.Module], *size: int, axis: int = 0
) -> Callable[..., tuple[nn.Module, Tensor]]:
    """A normalisation between linear layers; with `axis=1` it sees the examples on its second axis."""
    return lambda: (
        Through(
            lambda m, x: m.o(m.norm(m.l(x).transpose(0, axis)).transpose(0, axis).tanh()),
            l=nn.Linear(7, 9),
            norm=layer(),
            o=nn.Linear(9, 3),
        ),
        torch.randn(B, *size, 7),
    )


CASES |= {
    "layer_norm": normed(lambda: nn.LayerNorm(9)),
    "layer_norm without bias": normed(lambda: nn.LayerNorm(9, bias=False), 4),
    "layer_norm T": normed(lambda: nn.LayerNorm(9), 11),
    "layer_norm T = B": normed(lambda: nn.LayerNorm(9), B),
    "layer_norm over T": normed(lambda: nn.LayerNorm((4, 9)), 4),
    "layer_norm time-first": normed(lambda: nn.LayerNorm(9), 4, axis=1),
    "layer_norm time-first, T = B": normed(lambda: nn.LayerNorm(9), B, axis=1),
    "layer_norm time-first, T = 3": normed(lambda: nn.LayerNorm(9), 3, axis=1),
    "rms_norm": normed(lambda: nn.RMSNorm(9)),
    "rms_norm T": normed(lambda: nn.RMSNorm(9), 11),
    "rms_norm over T": normed(lambda: nn.RMSNorm((4, 9)), 4),
    "group_norm": normed(lambda: nn.GroupNorm(3, 9)),
    "group_norm T": normed(lambda: nn.GroupNorm(2, 4), 4),
    "instance_norm": normed(lambda: nn.InstanceNorm1d(4, affine=True), 4),
}


CASES["group_norm 2d"] = lambda: (
    nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(3, 6), nn.Tanh()),
    torch.randn(B, 4, 6, 6),
)


CASES["instance_norm 2d"] = lambda: (
    nn.Sequential(nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.Tanh()),
    torch.randn(B, 4, 6, 6),
)


CASES["batch_norm with fixed statistics"] = lambda: (
    nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Tanh()).eval(),
    torch.randn(B, 4, 6, 6),
)


CASES["prelu"] = lambda: (nn.Sequential(nn.Linear(7, 9), nn.PReLU(), nn.Linear(9, 3)), torch.randn(B, 7))


CASES["prelu by channel"] = lambda: (
    nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.Conv2d(4, 2, 2)),
    torch.randn(B, 3, 5, 5),
)


def bare(forward: Callable[..., Tensor], *size: int, **params: nn.Parameter) -> Callable[..., Any]:
    return lambda: (
        Through(forward, l=nn.Linear(7, 9), o=nn.Linear(9, 3), **copy.deepcopy(params)),
        torch.randn(B, *size, 7),
    )


CASES |= {
    "bare mul and add": bare(lambda m, x: m.o((m.g * m.l(x) + m.b).tanh()), g=param(9), b=param(1, 9)),
    "bare on raw input": bare(lambda m, x: m.o(m.l(x * m.g).tanh()), g=param(7)),
    "bare div and sub": bare(lambda m, x: m.o((m.l(x) / m.g.exp() - m.b).tanh()), g=param(9), b=param(9)),
    "bare reversed": bare(lambda m, x: m.o((m.b - m.g / (2 + m.l(x).tanh())).tanh()), g=param(9), b=param(1)),
    "bare scalars": bare(lambda m, x: m.o(((1 - m.t) * m.l(x) / m.u.exp()).tanh()), t=param(), u=param(1)),
    "bare power": bare(lambda m, x: m.o(m.l(x).abs().add(1) ** m.g), g=param(9)),
    "bare with T": bare(lambda m, x: m.o((m.l(x) * m.g + m.b).tanh()), 4, g=param(4, 1), b=param(4, 9)),
    "bare with T = B": bare(lambda m, x: m.o((m.l(x) * m.g + m.b).tanh()), B, g=param(B, 1), b=param(B, 9)),
    "bare where": bare(lambda m, x: m.o(torch.where(m.l(x) > 0, m.l(x), m.g)), g=param(9)),
    "bare torch functions": bare(
        lambda m, x: m.o(torch.add(m.l(x), m.g, alpha=2).mul(m.b).tanh()), g=param(9), b=param(9)
    ),
    "bare prototypes": bare(lambda m, x: (m.l(x)[:, None] - m.k[None]).square().sum(2).tanh(), k=param(4, 9)),
    "weights picked by data": bare(lambda m, x: m.o(m.l(x) * m.k[(x[:, 0] > 0).long()]), k=param(2, 9)),
}


def in_place(operation: Callable[..., Any]) -> Callable[..., Any]:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x)
        h = operation(h, m.g)
        return m.o(h.tanh())

    return bare(forward, g=param(9))


def iadd(h: Tensor, g: Tensor) -> Tensor:
    h += g
    return h


CASES["in-place +="] = in_place(iadd)


CASES["in-place add_"] = in_place(lambda h, g: h.add_(g))


CASES["in-place mul_"] = in_place(lambda h, g: h.mul_(g))


def standardized(w: Tensor) -> Tensor:
    axes = tuple(range(1, w.dim()))
    return (w - w.mean(axes, keepdim=True)) * torch.rsqrt(w.var(axes, keepdim=True) + 1e-4)


CASES["weight standardisation, linear"] = lambda: (
    Through(
        lambda m, x: m.o(F.linear(x, standardized(m.l.weight), m.l.bias).tanh()),
        l=nn.Linear(7, 9),
        o=nn.Linear(9, 3),
    ),
    torch.randn(B, 7),
)


CASES["weight standardisation, conv"] = lambda: (
    Through(
        lambda m, x: F.conv2d(x, standardized(m.c.weight), m.c.bias, padding=1).tanh(), c=nn.Conv2d(3, 4, 3)
    ),
    torch.randn(B, 3, 5, 5),
)


CASES["weight standardisation, used twice and directly"] = lambda: (
    Through(
        lambda m, x: F.linear(F.linear(x, standardized(m.w)).tanh(), standardized(m.w)).tanh() @ m.w,
        w=param(6, 6),
    ),
    torch.randn(B, 4, 6),
)


CASES["weight_norm"] = lambda: (
    nn.Sequential(weight_norm(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)),
    torch.randn(B, 7),
)


CASES["weight_norm conv"] = lambda: (
    nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()),
    torch.randn(B, 3, 5, 5),
)


CASES["orthogonal"] = lambda: (
    nn.Sequential(orthogonal(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)),
    torch.randn(B, 4, 7),
)


CASES["spectral_norm, eval"] = lambda: (
    nn.Sequential(spectral_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()).eval(),
    torch.randn(B, 3, 5, 5),
)


CASES["matmul"] = lambda: (
    Through(lambda m, x: (x @ m.w).tanh() @ m.v, w=param(7, 9), v=param(9, 4)),
    torch.randn(B, 4, 7),
)


CASES["matmul with a transposed weight"] = lambda: (
    Through(lambda m, x: (x @ m.w.t()).tanh(), w=param(9, 7)),
    torch.randn(B, 7),
)


CASES["matmul from the left, and with a vector"] = lambda: (
    Through(lambda m, x: (m.w @ x).tanh() @ m.v, w=param(3, 4), v=param(7)),
    torch.randn(B, 4, 7),
)


CASES["matmul by keyword"] = lambda: (
    Through(lambda m, x: torch.matmul(x, other=m.w).tanh(), w=param(7, 4)),
    torch.randn(B, 7),
)


CASES["prelu by keyword"] = lambda: (
    Through(lambda m, x: F.prelu(m.l(x), weight=m.w), l=nn.Linear(7, 4), w=param(4)),
    torch.randn(B, 7),
)


CASES["addmm, flattened"] = lambda: (
    Through(
        lambda m, x: torch.addmm(m.b, x.reshape(-1, 7), m.w).view(len(x), -1, 9).tanh(),
        b=param(9),
        w=param(7, 9),
    ),
    torch.randn(B, 4, 7),
)


CASES["addmm with a bias that broadcasts"] = lambda: (
    Through(lambda m, x: torch.addmm(m.b, x, m.w).tanh(), b=param(1), w=param(7, 9)),
    torch.randn(B, 7),
)


CASES["addmm with a bias of two axes"] = lambda: (
    Through(lambda m, x: torch.addmm(m.b, x, m.w).tanh(), b=param(1, 9), w=param(7, 9)),
    torch.randn(B, 7),
)


CASES["einsum"] = lambda: (
    Through(lambda m, x: torch.einsum("btp,pq->btq", x, m.w).tanh(), w=param(7, 4)),
    torch.randn(B, 3, 7),
)


CASES["einsum, weight first"] = lambda: (
    Through(lambda m, x: torch.einsum("pq,btp->bqt", m.w, x).tanh(), w=param(7, 4)),
    torch.randn(B, B, 7),
)


CASES["bilinear"] = lambda: (
    Through(lambda m, x: m.o(x, x.tanh()), o=nn.Bilinear(7, 7, 4)),
    torch.randn(B, 7),
)


def attention(length: int, batch_first: bool) -> Callable[[], tuple[nn.Module, Tensor]]:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        h = m.a(x, x, x, need_weights=False)[0]
        return m.o(h.mean(1 if batch_first else 0))

    return lambda: (
        Through(forward, a=nn.MultiheadAttention(8, 2, batch_first=batch_first), o=nn.Linear(8, 3)),
        torch.randn(B, length, 8),
    )


CASES |= {
    "attention batch-first": attention(4, True),
    "attention seq-first": attention(4, False),
    "attention batch-first, T = B": attention(B, True),
    "attention seq-first, T = B": attention(B, False),
    "attention batch-first, T = 3": attention(3, True),
    "attention seq-first, T = 3": attention(3, False),
    "attention seq-first, T = 6": attention(6, False),
}


CASES["attention with weights, keys of another width"] = lambda: (
    Through(
        lambda m, x: m.a(x, x[..., :5], x[..., 3:])[0],
        a=nn.MultiheadAttention(8, 2, kdim=5, vdim=5, batch_first=True),
    ),
    torch.randn(B, 4, 8),
)


CASES["attention with learned queries"] = lambda: (
    Through(
        lambda m, x: m.a(m.q.expand(len(x), -1, -1), x, x, need_weights=False)[0],
        a=nn.MultiheadAttention(8, 2, batch_first=True),
        q=param(2, 8),
    ),
    torch.randn(B, 4, 8),
)


CASES["encoder of two layers, seq-first, T = B"] = lambda: (
    Through(
        lambda m, x: m.e(x.transpose(0, 1)).mean(0),
        e=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, enable_nested_tensor=False
        ),
    ),
    torch.randn(B, B, 8),
)


def recurrent(layer: Callable[..., nn.Module], length: int = 4, **options: Any) -> Callable[..., Any]:
    time_first = not options.get("batch_first", True)

    def forward(m: Any, x: Tensor) -> Tensor:
        if time_first:
            return m.o(m.r(x.transpose(0, 1))[0].transpose(0, 1))
        return m.o(m.r(x)[0])

    def build() -> tuple[nn.Module, Tensor]:
        width = (options.get("proj_size") or 8) * (2 if options.get("bidirectional") else 1)
        layers = {"r": layer(7, 8, **{"batch_first": True, **options}), "o": nn.Linear(width, 3)}
        return Through(forward, **layers), torch.randn(B, length, 7)

    return build


CASES |= {
    "LSTM": recurrent(nn.LSTM),
    "LSTM, 2 layers, bidirectional": recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM, time-first, T = B": recurrent(nn.LSTM, B, batch_first=False),
    "LSTM without biases": recurrent(nn.LSTM, bias=False),
    "GRU": recurrent(nn.GRU),
    "GRU, 2 layers, bidirectional, T = B": recurrent(nn.GRU, B, num_layers=2, bidirectional=True),
    "RNN": recurrent(nn.RNN),
    "RNN relu": recurrent(nn.RNN, nonlinearity="relu"),
}


def cell_loop(layer: Callable[..., nn.Module], **options: Any) -> Callable[[], tuple[nn.Module, Tensor]]:
    def forward(m: Any, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = m.r(x[:, t], state)
        return m.o(state[0] if isinstance(state, tuple) else state)

    return lambda: (
        Through(forward, r=layer(7, 8, **options), o=nn.Linear(8, 3)),
        torch.randn(B, 4, 7),
    )


CASES |= {
    "LSTMCell": cell_loop(nn.LSTMCell),
    "LSTMCell without biases": cell_loop(nn.LSTMCell, bias=False),
    "GRUCell": cell_loop(nn.GRUCell),
    "RNNCell": cell_loop(nn.RNNCell),
}


def checkpointed(reentrant: bool, middle: Callable[[], nn.Module] | None = None) -> tuple[nn.Module, Tensor]:
    block = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 9))
    model = Through(
        lambda m, x: m.o(checkpoint(m.m, m.i(x).tanh(), use_reentrant=reentrant)),
        i=nn.Linear(7, 9),
        m=block if middle is None else middle(),
        o=nn.Linear(9, 3),
    )
    return model, torch.randn(B, 7)


CASES["checkpoint"] = lambda: checkpointed(False)


CASES["checkpoint around weight_norm"] = lambda: checkpointed(False, lambda: weight_norm(nn.Linear(9, 9)))


CASES["hypernetwork"] = lambda: (
    Through(
        lambda m, x: m.o(torch.bmm(m.h(x).view(-1, 9, 7), x[:, :, None])[:, :, 0].tanh()),
        h=nn.Linear(7, 63),
        o=nn.Linear(9, 3),
    ),
    torch.randn(B, 7),
)


CASES["weight decay in the loss"] = lambda: (
    Through(
        lambda m, x: m.o(m.h(x).tanh()) + m.h.weight.square().sum(), h=nn.Linear(7, 9), o=nn.Linear(9, 3)
    ),
    torch.randn(B, 7),
)


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(name not in names)
    return model


CASES["adapters beside a frozen layer"] = lambda: (
    frozen(
        Through(
            lambda m, x: m.base(x) + 0.5 * F.linear(F.linear(x, m.a), m.b),
            base=nn.Linear(7, 9),
            a=param(2, 7),
            b=param(9, 2),
        ),
        "base.weight",
        "base.bias",
    ),
    torch.randn(B, 4, 7),
)


CASES["adapters merged into a frozen weight"] = lambda: (
    frozen(
        Through(
            lambda m, x: F.linear(x, m.base.weight + m.b @ m.a).tanh(),
            base=nn.Linear(7, 9),
            a=param(2, 7),
            b=param(9, 2),
        ),
        "base.weight",
        "base.bias",
    ),
    torch.randn(B, 4, 7),
)


CASES["adapters with directions and magnitudes"] = lambda: (
    frozen(
        Through(
            lambda m, x: F.linear(x, m.g * F.normalize(m.base.weight + m.b @ m.a, dim=1)).tanh(),
            base=nn.Linear(7, 9),
            a=param(2, 7),
            b=param(9, 2),
            g=param(9, 1),
        ),
        "base.weight",
        "base.bias",
    ),
    torch.randn(B, 7),
)


CASES["biases only"] = lambda: (
    frozen(
        nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 3)),
        "0.weight",
        "2.weight",
        "3.weight",
    ),
    torch.randn(B, 4, 7),
)


CASES["weights only"] = lambda: (
    frozen(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3)),
        "0.bias",
        "1.bias",
        "3.bias",
    ),
    torch.randn(B, 3, 5, 5),
)


CASES["frozen in the middle"] = lambda: (
    frozen(
        nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)),
        "2.weight",
        "2.bias",
    ),
    torch.randn(B, 7),
)


CASES["unused"] = lambda: (
    Through(lambda m, x: m.used(x).tanh(), unused=nn.Linear(2, 2), used=nn.Linear(7, 3)),
    torch.randn(B, 7),
)


for mode in (True, False):
    for first in (True, False):
        CASES[f"encoder layer, training={mode}, norm_first={first}"] = lambda mode=mode, first=first: (
            nn.Sequential(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=first),
                Pool(),
                nn.Linear(8, 3),
            ).train(mode),
            torch.randn(B, 4, 8),
        )
