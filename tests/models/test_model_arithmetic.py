"""Outputs of models match NumPy and torch functions, and weights are initialised as published."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.models import (
    cnn,
    cnn5,
    minilm,
    wide_resnet,
)
from adamas.models.wide_resnet import StandardizedConv2d
from tests.support.one_by_one import close
from tests.support.small_models import CLASSES, N, count, tiny

# --- arithmetic -----------------------------------------------------------------------------------------


def numpy_convolution(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    size, half = w.shape[2], w.shape[2] // 2
    x = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    places = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", places, w)


def numpy_standardised(x: np.ndarray, w: np.ndarray, gain: np.ndarray, b: np.ndarray, stride: int):
    """Follows De et al., where the gain multiplies the weights."""
    fan_in = w[0].size
    variance = w.var((1, 2, 3), keepdims=True)
    scale = 1 / np.sqrt(np.maximum(variance * fan_in, 1e-4)) * gain.reshape(-1, 1, 1, 1)
    shift = w.mean((1, 2, 3), keepdims=True) * scale
    return numpy_convolution(x, w * scale - shift, stride) + b.reshape(1, -1, 1, 1)


def numpy_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray, groups: int) -> np.ndarray:
    g = x.reshape(len(x), groups, -1)
    g = (g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + 1e-5)
    return g.reshape(x.shape) * w.reshape(1, -1, 1, 1) + b.reshape(1, -1, 1, 1)


def as_arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2)])
def test_standardised_convolution_matches_numpy(size, stride):
    conv = StandardizedConv2d(5, 4, size, stride).double()
    with torch.no_grad():
        conv.weight += 0.4
        conv.weight[0] *= 1e-4  # below the clamp on the variance
        conv.gain += 0.3 * torch.randn_like(conv.gain)
        conv.bias += torch.randn_like(conv.bias)
    x = torch.randn(2, 5, 8, 6, dtype=torch.float64)
    p = as_arrays(conv)
    expected = numpy_standardised(x.numpy(), p["weight"], p["gain"], p["bias"], stride)
    np.testing.assert_allclose(conv(x).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_wide_resnet_has_the_published_architecture():
    """ReLU precedes each normalisation, and the shortcut of a stage's first block has its own."""
    model, (x, _) = tiny("wrn-16-4")
    p = as_arrays(model)

    def conv(x: np.ndarray, name: str, stride: int = 1) -> np.ndarray:
        return numpy_standardised(x, p[f"{name}.weight"], p[f"{name}.gain"], p[f"{name}.bias"], stride)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return numpy_norm(np.maximum(x, 0), p[f"{name}.weight"], p[f"{name}.bias"], 16)

    h = conv(x.numpy(), "stem")
    for i, (stride, first) in enumerate([(1, 1), (1, 0), (2, 1), (1, 0), (2, 1), (1, 0)]):
        block = f"blocks.{i}"
        shortcut = conv(norm(h, f"{block}.short_norm"), f"{block}.short", stride) if first else h
        h = conv(norm(h, f"{block}.norm1"), f"{block}.conv1", stride)
        h = conv(norm(h, f"{block}.norm2"), f"{block}.conv2") + shortcut
    logits = norm(h, "norm").mean((2, 3)) @ p["classifier.weight"].T + p["classifier.bias"]
    np.testing.assert_allclose(model(x).detach().numpy(), logits, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["max", "average"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_cnn_pools_after_the_activation(activation, pooling):
    model = cnn((3, 9, 8), CLASSES, groups=8, activation=activation, pooling=pooling).double()
    act = getattr(torch, activation)
    pool = F.max_pool2d if pooling == "max" else F.avg_pool2d
    layers = [m for m in model if count(m)]
    assert [type(m) for m in layers] == [nn.Conv2d, nn.GroupNorm] * 3 + [nn.Linear] * 2
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    h = x
    for i in range(3):
        h = F.conv2d(h, layers[2 * i].weight, layers[2 * i].bias, padding=1)
        h = act(F.group_norm(h, 8, layers[2 * i + 1].weight, layers[2 * i + 1].bias))
        h = pool(h, 2) if i < 2 else h
    expected = layers[7](act(layers[6](h.flatten(1))))
    close(model(x), expected, 1e-12)


@torch.no_grad()
def test_cnn5_has_the_published_architecture():
    model = cnn5((3, 13, 12), CLASSES).double()
    layers = [m for m in model if count(m)]
    x = torch.randn(2, 3, 13, 12, dtype=torch.float64)
    h = x
    for i, layer in enumerate(layers):
        h = F.conv2d(h, layer.weight, layer.bias, padding=1 if i else 0)
        h = h.tanh() if i < 4 else h
        h = F.max_pool2d(h, 2) if i < 3 else h
    close(model(x), h.mean((2, 3)), 1e-12)


@torch.no_grad()
def test_resnet_adds_before_the_last_activation():
    model, (x, _) = tiny("resnet8-gn")
    block = model.blocks[1]
    h = torch.randn(2, 16, 4, 4, dtype=torch.float64)
    inner = block.norm2(block.conv2(block.norm1(block.conv1(h)).relu()))
    short = F.group_norm(F.conv2d(h, block.short[0].weight, stride=2), 2, *block.short[1].parameters())
    close(block(h), (inner + short).relu(), 1e-12)
    assert model.blocks(model.conv(x)).shape == (N, 64, 2, 2)


# --- initial weights ------------------------------------------------------------------------------------

# False-alarm rate of one comparison. There are fewer than 50: together 5e-6.
ALARM = 1e-7


def variance_is(values: Tensor, expected: float, kurtosis: float = 3.0) -> bool:
    """Tells whether independent values of mean 0 and this kurtosis have the expected variance."""
    x = values.detach().double().flatten()
    z = (float((x**2).mean()) / expected - 1) / math.sqrt((kurtosis - 1) / x.numel())
    return 2 * float(stats.norm.sf(abs(z))) > ALARM


def fan_in(p: Tensor) -> int:
    return p[0].numel()


@pytest.mark.slow
def test_wide_resnet_is_initialised_as_published():
    model = wide_resnet((3, 32, 32), 10)
    drawn = {}
    for name, p in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind == "weight" and p.dim() > 1:
            drawn[name] = p.detach()
            assert variance_is(p, 1 / fan_in(p)), name
            assert not variance_is(math.sqrt(2) * p, 1 / fan_in(p)), name  # the variance for ReLU is rejected
        else:
            assert bool((p == (0.0 if kind == "bias" else 1.0)).all()), name
    assert len(drawn) == 17
    pooled = torch.cat([(p * math.sqrt(fan_in(p))).flatten() for p in drawn.values()]).double().numpy()
    assert stats.kstest(pooled, "norm").pvalue > ALARM
    cut = stats.truncnorm(-2, 2).rvs(len(pooled), random_state=0)
    assert stats.kstest(cut / cut.std(), "norm").pvalue < ALARM


def test_cnn5_is_initialised_as_published():
    cut = stats.truncnorm(-2, 2)
    variance, kurtosis = cut.var(), float(cut.stats("k")) + 3
    layers = [layer for layer in cnn5((3, 32, 32), 10) if isinstance(layer, nn.Conv2d)]
    for layer in layers:
        w = layer.weight
        assert variance_is(w, variance / fan_in(w), kurtosis)
        assert not variance_is(w, 1 / (3 * fan_in(w)), kurtosis)  # the default of torch is rejected
        assert float(w.detach().abs().max()) <= 2 / math.sqrt(fan_in(w)) * (1 + 1e-6)
        assert not layer.bias.any()
    pooled = torch.cat([(layer.weight * math.sqrt(fan_in(layer.weight))).flatten() for layer in layers])
    assert variance_is(pooled, variance, kurtosis)
    assert not variance_is(pooled, 1.0, kurtosis)
    smaller = cnn5((3, 32, 32), 10, initialization="torch")[0].weight
    assert variance_is(smaller, 1 / (3 * fan_in(smaller)), 1.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initialization", "deviation"), [("pretrained", None), ("bert", 0.02), ("normal", 1.0)]
)
def test_minilm_is_initialised_as_asked(published, initialization, deviation):
    reference, folder = published
    model = minilm(folder, CLASSES, initialization=initialization)
    block, theirs = model.trained.blocks[0], reference.encoder.layer[-1]
    kept = torch.equal(block.up.weight, theirs.intermediate.dense.weight)
    assert kept == (initialization == "pretrained")
    assert torch.equal(model.frozen.blocks[1].up.weight, reference.encoder.layer[1].intermediate.dense.weight)
    assert variance_is(model.trained.classifier.weight, (deviation or 0.02) ** 2)
    assert not model.trained.classifier.bias.any()
    if deviation is not None:
        for name, p in block.named_parameters():
            if p.dim() == 2:
                assert variance_is(p, deviation**2), name
                assert not variance_is(2 * p, deviation**2), name
            else:
                assert bool((p == float("norm.weight" in name)).all()), name
