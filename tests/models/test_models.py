"""The architectures: their counts, their arithmetic, how they start, and that the fast engine takes them."""

import json
import math
import os
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, rules
from adamas.engines import ENGINES, trainable_parameters
from adamas.models import (
    MODELS,
    BertSizes,
    Scattering,
    Staged,
    cnn,
    cnn5,
    minilm,
    resnet8_gn,
    scattering,
    wide_resnet,
)
from adamas.models.minilm import _visible
from adamas.models.wide_resnet import StandardizedConv2d
from tests.support.models_by_hand import ball, close, some_weights

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

N, CLASSES, TOKENS = 4, 3, 7
SMALL = BertSizes(words=50, positions=16, width=24, layers=3, heads=4, inner=40)

# The smallest examples of each model, and options.
TINY: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((1, 4, 4), {"hidden": 9}),
    "linear": ((1, 4, 4), {}),
    "tanh-cnn": ((1, 14, 14), {}),
    "cnn": ((3, 8, 8), {}),
    "cnn5": ((3, 10, 10), {}),
    "wrn-16-4": ((3, 8, 8), {}),
    "resnet8-gn": ((3, 8, 8), {}),
    "resnet18-gn": ((3, 8, 8), {}),
    "scattering": ((3, 8, 8), {"scales": 1, "angles": 4, "groups": 5}),
    "minilm": ((TOKENS,), {"sizes": SMALL}),
}

every_model = pytest.mark.parametrize("name", MODELS)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def texts(n: int = N, length: int = TOKENS, words: int = SMALL.words) -> Tensor:
    """Texts of different lengths, with padding at the end; the first has none."""
    ids = torch.randint(1, words, (n, length))
    return torch.where(torch.arange(length) < length - torch.arange(n).unsqueeze(1) % 4, ids, 0)


def tiny(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A model with parameters that are no ones and zeros, and a batch."""
    shape, options = TINY[name]
    model = MODELS[name](shape, CLASSES, **options)
    with torch.no_grad():
        for p in trainable_parameters(model).values():
            p += 0.05 * torch.randn_like(p)
    x = texts() if name == "minilm" else torch.randn(N, *shape, dtype=dtype)
    return model.to(dtype), (x, torch.randint(CLASSES, (N,)))


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def make_private(model: nn.Module, *tensors: Tensor) -> adamas.PrivateRun:
    return adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        TensorDataset(*tensors),
        loss,
        batch_size=2,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=0,
    )


# --- counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 28, 28), 10, 795_010),
        ("linear", (1, 28, 28), 10, 7_850),
        ("tanh-cnn", (1, 28, 28), 10, 26_010),
        ("cnn", (3, 32, 32), 10, 582_346),
        ("cnn5", (3, 32, 32), 10, 411_466),
        ("wrn-16-4", (3, 32, 32), 10, 2_753_818),
        ("wrn-16-4", (3, 32, 32), 1000, 3_008_248),
        ("resnet8-gn", (3, 32, 32), 10, 78_042),
        ("resnet18-gn", (3, 32, 32), 10, 11_173_962),
        ("scattering", (3, 32, 32), 10, 155_530),
        ("scattering", (1, 28, 28), 10, 39_700),
    ],
)
def test_parameters_are_as_many_as_published(name, shape, classes, expected):
    model = MODELS[name](shape, classes)
    assert count(model) == expected
    assert model(torch.randn(2, *shape)).shape == (2, classes)


def test_parameters_of_tanh_cnn_with_normalisation():
    model = MODELS["tanh-cnn"]((3, 32, 32), 10, groups=4)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert [(norm.num_groups, norm.num_channels) for norm in norms] == [(4, 16), (4, 32)]
    assert count(model) == count(MODELS["tanh-cnn"]((3, 32, 32), 10)) + 2 * (16 + 32)
    with pytest.raises(ValueError, match="groups=3"):
        MODELS["tanh-cnn"]((3, 32, 32), 10, groups=3)


def test_parameters_of_minilm():
    model = MODELS["minilm"]((16,), 3)
    block = 4 * (384 * 384 + 384) + 2 * 384 * 1536 + 1536 + 384 + 4 * 384
    assert count(model.frozen) == (30522 + 512 + 2) * 384 + 2 * 384 + 5 * block
    assert count(model.trained) == block + 384 * 3 + 3
    assert sum(p.numel() for p in trainable_parameters(model).values()) == count(model.trained)


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_blocks_are_frozen_or_trained(blocks):
    model = minilm(None, sizes=SMALL, blocks_trained=blocks)
    assert [len(part.blocks) for part in (model.frozen, model.trained)] == [3 - blocks, blocks]
    assert not any(p.requires_grad for p in model.frozen.parameters())
    assert all(p.requires_grad for p in model.trained.parameters())


# --- engines ------------------------------------------------------------------------------------------


def test_every_model_is_tested():
    assert TINY.keys() == MODELS.keys()


@every_model
def test_the_fast_engine_equals_the_loop(name):
    model, batch = tiny(name)
    params = list(trainable_parameters(model).values())
    scale = {p: 0.5 + torch.rand_like(p) for p in params}
    weights = some_weights(N)
    slow, fast = (ENGINES[engine](model, loss, batch) for engine in ("loop", "bookkeeping"))
    for geometry in (ball(model, 0.8), Geometry(None, scale)):
        torch.testing.assert_close(fast.norms(geometry), slow.norms(geometry), rtol=1e-9, atol=0)
    sums, expected = fast.weighted_sum(weights), slow.weighted_sum(weights)
    assert set(sums) == set(expected) == set(params)
    for parameter, p in model.named_parameters():
        if p.requires_grad:
            size = float(expected[p].abs().max())
            assert size > 1e-8 or parameter.endswith("key.bias"), f"{parameter} proves nothing"
            assert float((sums[p] - expected[p]).abs().max()) <= 1e-9 * (size + 1e-3), parameter


@every_model
def test_a_run_takes_the_fast_engine_and_its_formulas(name):
    model, batch = tiny(name, torch.float32)
    run = make_private(model, *batch)
    assert run.engine == "bookkeeping"
    formulas = {cost.parameter: cost.formula for cost in run.explain().costs}
    assert formulas.keys() == {key for key, p in model.named_parameters() if p.requires_grad}
    assert all(formula and "Jacobian" not in formula for formula in formulas.values()), formulas
    if name == "wrn-16-4":
        standardised = [key for key, p in model.named_parameters() if p.dim() == 4]
        assert len(standardised) == 16
        assert {formulas[key] for key in standardised} == {"closed form of normalised rows"}


def test_the_trained_stage_has_the_gradients_of_the_whole():
    whole, (ids, y) = tiny("minilm")
    hidden, present = whole.frozen(ids)
    params = list(whole.trained.parameters())
    norms, sums = [], []
    for model, batch in ((whole, (ids, y)), (whole.trained, (hidden, present, y))):
        engine = ENGINES["bookkeeping"](model, loss, batch)
        norms.append(engine.norms(Geometry.ball(params)))
        sums.append(engine.weighted_sum(some_weights(N)))
    close(norms[1], norms[0])
    for p in params:
        close(sums[1][p], sums[0][p])


def test_the_trained_stage_takes_a_run_of_its_own():
    whole, (ids, y) = tiny("minilm", torch.float32)
    assert make_private(whole.trained, *whole.frozen(ids), y).engine == "bookkeeping"


def test_low_rank_adapters_of_peft():
    peft = pytest.importorskip("peft")
    whole, (ids, y) = tiny("minilm")
    hidden, present = whole.frozen(ids)
    config = peft.LoraConfig(
        r=3, lora_alpha=3, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    model = peft.get_peft_model(whole.trained, config)
    params = trainable_parameters(model)
    assert sum(p.numel() for p in params.values()) == 2 * (2 * 3 * SMALL.width) + (SMALL.width + 1) * CLASSES
    with torch.no_grad():
        for p in params.values():  # also the factors that begin with 0
            p += 0.1 * torch.randn_like(p)
    batch, weights = (hidden, present, y), some_weights(N)
    slow, fast = (ENGINES[engine](model, loss, batch) for engine in ("loop", "bookkeeping"))
    close(fast.norms(ball(model)), slow.norms(ball(model)))
    sums = slow.weighted_sum(weights)
    for p, value in fast.weighted_sum(weights).items():
        close(value, sums[p])
    formulas = {cost.formula for cost in fast.explain(ball(model)).costs}
    assert not any("Jacobian" in formula for formula in formulas)


# --- arithmetic ---------------------------------------------------------------------------------------


def numpy_convolution(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    size, half = w.shape[2], w.shape[2] // 2
    x = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    places = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", places, w)


def numpy_standardised(x: np.ndarray, w: np.ndarray, gain: np.ndarray, b: np.ndarray, stride: int):
    """As De et al. write it: the gain multiplies the weights."""
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
def test_standardised_convolution(size, stride):
    conv = StandardizedConv2d(5, 4, size, stride).double()
    with torch.no_grad():
        conv.weight += 0.4
        conv.weight[0] *= 1e-4  # shorter than what the clamp lets through
        conv.gain += 0.3 * torch.randn_like(conv.gain)
        conv.bias += torch.randn_like(conv.bias)
    x = torch.randn(2, 5, 8, 6, dtype=torch.float64)
    p = as_arrays(conv)
    expected = numpy_standardised(x.numpy(), p["weight"], p["gain"], p["bias"], stride)
    np.testing.assert_allclose(conv(x).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_wide_resnet_is_the_published_stack():
    """ReLU before each normalisation; another normalisation on the way round a stage's first block."""
    model, (x, _) = tiny("wrn-16-4")
    p = as_arrays(model)

    def conv(x: np.ndarray, name: str, stride: int = 1) -> np.ndarray:
        return numpy_standardised(x, p[f"{name}.weight"], p[f"{name}.gain"], p[f"{name}.bias"], stride)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return numpy_norm(np.maximum(x, 0), p[f"{name}.weight"], p[f"{name}.bias"], 16)

    h = conv(x.numpy(), "stem")
    for i, (stride, first) in enumerate([(1, 1), (1, 0), (2, 1), (1, 0), (2, 1), (1, 0)]):
        block = f"blocks.{i}"
        way = conv(norm(h, f"{block}.short_norm"), f"{block}.short", stride) if first else h
        h = conv(norm(h, f"{block}.norm1"), f"{block}.conv1", stride)
        h = conv(norm(h, f"{block}.norm2"), f"{block}.conv2") + way
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
def test_cnn5_is_the_published_stack():
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


# --- MiniLM -------------------------------------------------------------------------------------------


def vectors(model: Staged, ids: Tensor) -> Tensor:
    """What the last block gives."""
    hidden, present = model.frozen(ids)
    for block in model.trained.blocks:
        hidden = block(hidden, _visible(present, hidden.dtype))
    return hidden


def expected_logits(model: Staged, last: Tensor, ids: Tensor) -> Tensor:
    means = torch.stack([v[i != 0].mean(0) for v, i in zip(last, ids, strict=True)])
    return model.trained.classifier(means)


@pytest.fixture
def published(tmp_path):
    """A BERT with random weights, in the files of `transformers`."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=SMALL.words,
        max_position_embeddings=SMALL.positions,
        hidden_size=SMALL.width,
        num_hidden_layers=SMALL.layers,
        num_attention_heads=SMALL.heads,
        intermediate_size=SMALL.inner,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_minilm_is_bert(published, blocks):
    reference, folder = published
    model = minilm(folder, CLASSES, blocks_trained=blocks)
    ids = texts()
    with torch.no_grad():
        last = reference(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        assert float((vectors(model, ids) - last)[ids != 0].abs().max()) < 1e-5
        assert float((model(ids) - expected_logits(model, last, ids)).abs().max()) < 1e-5


@pytest.mark.data
def test_minilm_with_its_published_weights():
    transformers = pytest.importorskip("transformers")
    from adamas import data

    folder = data.minilm_files()
    reference = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    model = minilm(folder)
    ids = texts(6, 40, 30522)
    with torch.no_grad():
        last = reference(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        assert float((vectors(model, ids) - last)[ids != 0].abs().max()) < 1e-5
        assert float((model(ids) - expected_logits(model, last, ids)).abs().max()) < 1e-5


@torch.no_grad()
def test_padding_changes_nothing():
    model = minilm(None, CLASSES, sizes=SMALL).double()
    ids = texts()
    longer = F.pad(ids, (0, 5))
    close(model(longer), model(ids), 1e-12)
    assert torch.isfinite(model(torch.zeros_like(ids))).all()


@torch.no_grad()
def test_vectors_may_be_kept_in_half_precision():
    model = minilm(None, CLASSES, sizes=SMALL)
    hidden, present = model.frozen(texts())
    logits = model.trained(hidden, present)
    assert model.trained(hidden.half(), present).dtype == torch.float32
    assert float((model.trained(hidden.half(), present) - logits).abs().max()) < 1e-2


def test_a_staged_model_keeps_its_frozen_part_in_evaluation_mode():
    model = Staged(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 2)).train()
    assert model.training
    assert model.trained.training
    assert not any(m.training for m in model.frozen.modules())


# --- how they start -----------------------------------------------------------------------------------

# Each test of one tensor raises a false alarm once in 10^7, of which there are fewer than 50: 5 in 10^6.
ALARM = 1e-7


def variance_is(values: Tensor, expected: float, kurtosis: float = 3.0) -> bool:
    """Whether independent values with mean 0 have this variance; normal ones, or with another kurtosis."""
    x = values.detach().double().flatten()
    z = (float((x**2).mean()) / expected - 1) / math.sqrt((kurtosis - 1) / x.numel())
    return 2 * float(stats.norm.sf(abs(z))) > ALARM


def fan_in(p: Tensor) -> int:
    return p[0].numel()


def test_wide_resnet_starts_as_published():
    model = wide_resnet((3, 32, 32), 10)
    drawn = {}
    for name, p in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind == "weight" and p.dim() > 1:
            drawn[name] = p.detach()
            assert variance_is(p, 1 / fan_in(p)), name
            assert not variance_is(math.sqrt(2) * p, 1 / fan_in(p)), name  # as for ReLU
        else:
            assert bool((p == (0.0 if kind == "bias" else 1.0)).all()), name
    assert len(drawn) == 17
    pooled = torch.cat([(p * math.sqrt(fan_in(p))).flatten() for p in drawn.values()]).double().numpy()
    assert stats.kstest(pooled, "norm").pvalue > ALARM
    cut = stats.truncnorm(-2, 2).rvs(len(pooled), random_state=0)
    assert stats.kstest(cut / cut.std(), "norm").pvalue < ALARM


def test_cnn5_starts_as_published():
    cut = stats.truncnorm(-2, 2)
    variance, kurtosis = cut.var(), float(cut.stats("k")) + 3
    layers = [layer for layer in cnn5((3, 32, 32), 10) if isinstance(layer, nn.Conv2d)]
    for layer in layers:
        w = layer.weight
        assert variance_is(w, variance / fan_in(w), kurtosis)
        assert not variance_is(w, 1 / (3 * fan_in(w)), kurtosis)  # as torch draws them
        assert float(w.detach().abs().max()) <= 2 / math.sqrt(fan_in(w)) * (1 + 1e-6)
        assert not layer.bias.any()
    pooled = torch.cat([(layer.weight * math.sqrt(fan_in(layer.weight))).flatten() for layer in layers])
    assert variance_is(pooled, variance, kurtosis)
    assert not variance_is(pooled, 1.0, kurtosis)
    smaller = cnn5((3, 32, 32), 10, initialization="torch")[0].weight
    assert variance_is(smaller, 1 / (3 * fan_in(smaller)), 1.8)


@pytest.mark.parametrize(
    ("initialization", "deviation"), [("pretrained", None), ("bert", 0.02), ("normal", 1.0)]
)
def test_minilm_starts_as_asked(published, initialization, deviation):
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


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("cnn", (1, 3, 8), "4x4"),
        ("cnn5", (1, 8, 8), "10x10"),
        ("wrn-16-4", (3, 8, 3), "4x4"),
        ("resnet8-gn", (784,), "4x4"),
        ("resnet18-gn", (3, 7, 8), "8x8"),
    ],
)
def test_images_that_are_too_small(name, shape, smallest):
    with pytest.raises(ValueError, match=rf"input_shape=.*channels, height, width.*{smallest}.*{name}"):
        MODELS[name](shape, 10)


@pytest.mark.parametrize(
    ("name", "smallest"), [("tanh-cnn", 14), ("cnn", 4), ("cnn5", 10), ("wrn-16-4", 4), ("resnet8-gn", 4)]
)
def test_the_smallest_images(name, smallest):
    model = MODELS[name]((1, smallest, smallest), 10)
    assert torch.isfinite(model(torch.randn(2, 1, smallest, smallest))).all()


@every_model
def test_wrong_counts(name):
    shape, options = TINY[name]
    with pytest.raises(ValueError, match="classes=0"):
        MODELS[name](shape, 0, **options)
    with pytest.raises(ValueError, match=r"input_shape\[0\]=0"):
        MODELS[name]((0, *shape[1:]), 10, **options)
    with pytest.raises(ValueError, match="input_shape"):
        MODELS[name]((), 10, **options)


def test_wrong_options():
    with pytest.raises(ValueError, match=r"groups=3 .* 32, 64"):
        cnn((3, 32, 32), 10, groups=3)
    with pytest.raises(ValueError, match="activation='gelu'"):
        cnn((3, 32, 32), 10, activation="gelu")
    with pytest.raises(ValueError, match="pooling='mean'"):
        cnn((3, 32, 32), 10, pooling="mean")
    with pytest.raises(ValueError, match="depth=18 to be 6k"):
        wide_resnet((3, 32, 32), 10, depth=18)
    with pytest.raises(ValueError, match=r"groups=2 .* 7"):
        resnet8_gn((3, 32, 32), 10, width=7)


def test_wrong_options_of_minilm(published):
    _, folder = published
    with pytest.raises(ValueError, match=r"input_shape=\(1, 8\) to be \(tokens,\)"):
        MODELS["minilm"]((1, 8), 2, sizes=SMALL)
    with pytest.raises(ValueError, match=r"input_shape=\(17,\) .* at most 16"):
        MODELS["minilm"]((17,), 2, sizes=SMALL)
    with pytest.raises(ValueError, match="blocks_trained=4 to be at most 3"):
        minilm(None, sizes=SMALL, blocks_trained=4)
    with pytest.raises(ValueError, match="initialization='zero'"):
        minilm(None, sizes=SMALL, initialization="zero")
    with pytest.raises(ValueError, match="weights or sizes"):
        minilm(folder, sizes=SMALL)
    with pytest.raises(ValueError, match="heads=5 to divide width=384"):
        BertSizes(heads=5)
    with pytest.raises(ValueError, match=r"at most 16.*Cut longer texts"):
        minilm(None, sizes=SMALL)(torch.ones(2, 17, dtype=torch.long))


def test_files_that_are_missing_or_of_another_model(published, tmp_path_factory):
    _, folder = published
    with pytest.raises(FileNotFoundError, match=r"config.json.*minilm_files\(\)"):
        minilm(tmp_path_factory.mktemp("empty"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 41}))
    with pytest.raises(
        ValueError, match=r"encoder.layer.0.intermediate.dense.weight.*found shape \(40, 24\)"
    ):
        minilm(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(ValueError, match=r"encoder.layer.3.*found none"):
        minilm(folder)
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(ValueError, match=r"hidden_act='gelu' in config\.json, found 'relu'"):
        minilm(folder)


# --- scattering ---------------------------------------------------------------------------------------

# Coefficients by Kymatio 0.3.0 at the place (1, 2) of the image below: `Scattering2D(scales, size, L=4)`.
KYMATIO = {
    (1, 8, 12): [-0.23526, 0.12983, 0.12741, 0.13697, 0.05654],
    (2, 16, 24): [
        *(0.61919, 0.14342, 0.13693, 0.13925, 0.05703, 0.29049, 0.28306, 0.08058, 0.06632),
        *(0.01448, 0.01382, 0.00223, 0.00184, 0.01074, 0.00957, 0.00812, 0.01122),
        *(0.00371, 0.00537, 0.0159, 0.00598, 0.00457, 0.0043, 0.00681, 0.00419),
    ],
}


def stripes(height: int, width: int) -> Tensor:
    y, x = torch.arange(height).unsqueeze(1), torch.arange(width)
    return (torch.cos(0.7 * y + 0.3 * x) + (3 * y + 2 * x) % 5 / 5)[None, None]


@pytest.mark.parametrize(("scales", "height", "width"), KYMATIO)
def test_the_scattering_transform_equals_kymatio(scales, height, width):
    (features,) = Scattering((1, height, width), scales=scales, angles=4)(stripes(height, width))
    # Kymatio drops the high frequencies of the average on coarser grids, and rounds pi.
    rtol = 2e-4 if scales == 1 else 1.2e-2
    expected = torch.tensor(KYMATIO[scales, height, width])
    torch.testing.assert_close(features[0, :, 1, 2], expected, rtol=rtol, atol=1e-5)


def test_only_the_average_of_a_constant_image_is_left():
    (features,) = Scattering((1, 16, 16))(torch.full((1, 1, 16, 16), 3.0))
    torch.testing.assert_close(features[:, 0], torch.full((1, 4, 4), 3.0), rtol=1e-3, atol=0)
    assert float(features[:, 1:].abs().max()) < 1e-5


def test_the_scattering_transform_follows_a_shift_by_its_stride():
    image = torch.zeros(2, 1, 32, 32)
    blob = torch.randn(6, 6)
    image[0, 0, 10:16, 10:16] = blob
    image[1, 0, 14:20, 10:16] = blob
    (features,) = Scattering((1, 32, 32))(image)
    torch.testing.assert_close(features[1, :, 2:6], features[0, :, 1:5], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(features[1], features[0], atol=1e-2)


def test_the_scattering_transform_needs_a_size_that_its_stride_divides():
    with pytest.raises(ValueError, match=r"scales=3 .* divides height and width, got .*28"):
        Scattering((1, 28, 28), scales=3)
    with pytest.raises(ValueError, match="groups=7 to divide"):
        scattering((1, 28, 28), 10, groups=7)
