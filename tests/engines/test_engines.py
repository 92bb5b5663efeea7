"""Every engine of ENGINES against plain autograd, one example at a time."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adamas import Geometry, UnsupportedError, clipped_sum
from adamas.engines import ENGINES, Loop, Vmap, trainable_parameters
from adamas.engines.base import Materialized
from tests.support.through import Through

TOLERANCE = 1e-9  # relative; all models are float64


# --- models: one function per layer kind, (draw, n) -> model and batch --------------------------------


def small(draw: Any, low: int = 1, high: int = 4) -> int:
    return draw(st.integers(low, high))


def linear(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    d, k = small(draw), small(draw)
    model = nn.Sequential(nn.Linear(d, k, bias=draw(st.booleans())), nn.Tanh(), nn.Linear(k, 3))
    return model, torch.randn(n, d)


def linear_with_time(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    d, k = small(draw), small(draw)
    times = draw(st.sampled_from([(1,), (3,), (2, 3)]))
    return nn.Sequential(nn.Linear(d, k), nn.Tanh(), nn.Linear(k, 2)), torch.randn(n, *times, d)


def linear_as_many_times_as_examples(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    # T = n: an engine must not take the one axis for the other.
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), torch.randn(n, max(n, 1), 3)


def conv1d(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from([1, 2]))
    kernel, dilation = small(draw, 1, 3), small(draw, 1, 2)
    layer = nn.Conv1d(
        2 * groups,
        2 * groups,
        kernel,
        stride=small(draw, 1, 3),
        padding=small(draw, 0, 2),
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, 2 * groups, small(draw, 5, 8))


def conv2d(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from([1, 2]))
    layer = nn.Conv2d(
        2 * groups,
        2 * groups,
        (small(draw, 1, 3), small(draw, 1, 3)),
        stride=(small(draw, 1, 2), small(draw, 1, 3)),
        padding=draw(st.sampled_from([0, 1, (2, 0)])),
        dilation=(small(draw, 1, 2), small(draw, 1, 2)),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "circular"])),
    )
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, 2 * groups, small(draw, 5, 7), small(draw, 5, 7))


def conv_depthwise_same(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    layer = nn.Conv2d(3, 6, 3, padding="same", groups=3)
    return nn.Sequential(layer, nn.Tanh(), nn.Conv2d(6, 2, 1)), torch.randn(n, 3, 4, 5)


def embedding(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    size, width = small(draw, 2, 5), small(draw)
    padding_idx = draw(st.sampled_from([None, 0, size - 1]))
    model = nn.Sequential(nn.Embedding(size, width, padding_idx=padding_idx), nn.Tanh(), nn.Linear(width, 2))
    # More tokens than words: an example repeats words, and meets the padding.
    shape = draw(st.sampled_from([(6,), (2, 4)]))
    return model, torch.randint(size, (n, *shape))


def layer_norm(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    shape = draw(st.sampled_from([(3,), (4, 3), (2, 4, 3)]))
    axes = draw(st.integers(1, len(shape)))
    layer = nn.LayerNorm(shape[-axes:], bias=draw(st.booleans()))
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, *shape)


def group_norm(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from([1, 2, 4]))
    extent = draw(st.sampled_from([(3,), (2, 3)]))
    return nn.Sequential(nn.GroupNorm(groups, 4), nn.Tanh()), torch.randn(n, 4, *extent)


def instance_norm(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    layer: nn.Module
    if draw(st.booleans()):
        layer, extent = nn.InstanceNorm1d(3, affine=True), (5,)
    else:
        layer, extent = nn.InstanceNorm2d(3, affine=True), (3, 4)
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, 3, *extent)


def bias_only(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for name, p in model.named_parameters():
        p.requires_grad_("bias" in name)
    return model, torch.randn(n, 3)


def bare_parameters(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    rows = draw(st.sampled_from([(), (1,), (2,)]))
    return (
        Through(
            lambda m, x: (x * m.gain + m.shift).tanh(),
            gain=nn.Parameter(torch.randn(*rows, 3)),
            shift=nn.Parameter(torch.randn(3)),
        ),
        torch.randn(n, 2, 3),
    )


def tied_weights(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    width = small(draw)
    model = nn.Sequential(nn.Embedding(5, width), nn.Tanh(), nn.Linear(width, 5, bias=draw(st.booleans())))
    model[2].weight = model[0].weight
    return model, torch.randint(5, (n, small(draw, 1, 6)))


def called_twice(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(lambda m, x: m.layer(m.layer(x).tanh()).tanh(), layer=nn.Linear(3, 3)),
        torch.randn(n, *draw(st.sampled_from([(3,), (2, 3)]))),
    )


def frozen_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))
    model[draw(st.sampled_from([0, 2, 3]))].weight.requires_grad_(False)
    return model, torch.randn(n, 3)


def unused_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(lambda m, x: m.used(x).tanh(), unused=nn.Linear(2, 2), used=nn.Linear(3, 2)),
        torch.randn(n, 3),
    )


def scalar_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(
            lambda m, x: m.layer(x * m.temperature).tanh(),
            layer=nn.Linear(3, 2),
            temperature=nn.Parameter(torch.tensor(1.5)),
        ),
        torch.randn(n, 3),
    )


def empty_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(
            lambda m, x: m.layer(x).tanh() + m.nothing.sum(),
            layer=nn.Linear(3, 2),
            nothing=nn.Parameter(torch.zeros(0, 3)),
        ),
        torch.randn(n, 3),
    )


KINDS = [
    linear,
    linear_with_time,
    linear_as_many_times_as_examples,
    conv1d,
    conv2d,
    conv_depthwise_same,
    embedding,
    layer_norm,
    group_norm,
    instance_norm,
    bias_only,
    bare_parameters,
    tied_weights,
    called_twice,
    frozen_parameter,
    unused_parameter,
    scalar_parameter,
    empty_parameter,
]

# (engine, kind) -> why this engine refuses this kind; it must then raise UnsupportedError.
REFUSED: dict[tuple[str, str], str] = {}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A different, non-linear loss for each example; `batch[1]` is the example's own factor."""
    x, factor = batch
    out = model(x).flatten(1)
    return factor * (out.square().sum(1) + (3 * out).sin().sum(1))


@dataclass
class Case:
    model: nn.Module
    batch: tuple[Tensor, Tensor]
    geometry: Geometry
    weights: Tensor

    def __repr__(self) -> str:
        return f"Case({self.model}, x={tuple(self.batch[0].shape)}, geometry={self.geometry})"


@st.composite
def cases(draw: Any, kind: Callable[..., tuple[nn.Module, Tensor]]) -> Case:
    n = draw(st.sampled_from([0, 1, 2, 3, 5]))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    torch.set_default_dtype(torch.float64)
    try:
        model, x = kind(draw, n)
        for p in model.parameters():  # the norms' weights start at 1 and their biases at 0
            p.data += 0.3 * torch.randn(p.shape)
        factor = 0.5 + torch.rand(n)
        geometry = draw(geometries(list(trainable_parameters(model).values())))
        weights = torch.rand(n) * (torch.rand(n) < 0.8)
    finally:
        torch.set_default_dtype(torch.float32)
    return Case(model, (x, factor), geometry, weights)


@st.composite
def geometries(draw: Any, params: list[Tensor]) -> Geometry:
    """A flat ball, or any mixture of numbers and values per coordinate, with or without a center."""
    if draw(st.booleans()):
        return Geometry.ball(params, draw(st.sampled_from([0.1, 1.0, 30.0, float("inf")])))
    scale: dict[Tensor, Tensor | float] = {}
    center: dict[Tensor, Tensor | float] = {}
    for p in params:
        scale[p] = draw(
            st.sampled_from(
                [0.7, torch.tensor(1.3), (0.1 + 3 * torch.rand(p.shape)), torch.rand(p.shape) + 0.01]
            )
        )
        c = draw(st.sampled_from([None, 0.4, torch.tensor(-0.2), torch.randn(p.shape), torch.randn(p.shape)]))
        if c is not None:
            center[p] = c
    return Geometry(center if draw(st.booleans()) else None, scale)


# --- the oracle ---------------------------------------------------------------------------------------


def gradients_one_by_one(
    model: nn.Module, loss: Callable[..., Tensor], examples: list[Any]
) -> list[dict[Tensor, Tensor]]:
    """Runs plain autograd on batches of one example."""
    params = [p for p in model.parameters() if p.requires_grad]
    result = []
    for example in examples:
        gradients = torch.autograd.grad(loss(model, example).sum(), params, allow_unused=True)
        result.append(
            {p: torch.zeros_like(p) if g is None else g for p, g in zip(params, gradients, strict=True)}
        )
    return result


def split(batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    return [tuple(x[i : i + 1] for x in batch) for i in range(len(batch[0]))]


def whitened_norms(gradients: list[dict[Tensor, Tensor]], geometry: Geometry) -> Tensor:
    result = torch.zeros(len(gradients), dtype=torch.float64)
    for i, gradient in enumerate(gradients):
        for p, g in gradient.items():
            c = 0.0 if geometry.center is None else geometry.center.get(p, 0.0)
            result[i] += (((g - c) / geometry.scale[p]) ** 2).sum().detach()
    return result.sqrt()


def expected_sum(gradients: list[dict[Tensor, Tensor]], weights: Tensor) -> dict[Tensor, Tensor]:
    return {
        p: sum((w * g[p] for w, g in zip(weights, gradients, strict=True) if w != 0), torch.zeros_like(p))
        for p in gradients[0]
    }


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    scale = 1 + (float(expected.abs().max()) if expected.numel() else 0.0)
    worst = float((actual - expected).abs().max()) if expected.numel() else 0.0
    assert worst <= tolerance * scale, f"off by {worst:g} at size {scale:g}"


def every_engine(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("engine", ENGINES)(test)


def mlp(seed: int = 0, width: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double()


def data(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(n, 3, dtype=torch.float64), 0.5 + torch.rand(n, dtype=torch.float64)


def ball(model: nn.Module, radius: float = 1.0) -> Geometry:
    return Geometry.ball(trainable_parameters(model).values(), radius)


# --- exactness ----------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=12)
@given(drawn=st.data())
def test_norms_and_weighted_sum_are_those_of_one_example_at_a_time(engine, kind, drawn):
    case = drawn.draw(cases(kind))
    built = ENGINES[engine](case.model, loss, case.batch)
    if (engine, kind.__name__) in REFUSED:
        with pytest.raises(UnsupportedError):
            built.norms(case.geometry)
        return
    norms = built.norms(case.geometry)
    sums = built.weighted_sum(case.weights)

    gradients = gradients_one_by_one(case.model, loss, split(case.batch))
    assert_close(norms, whitened_norms(gradients, case.geometry))
    params = [p for p in case.model.parameters() if p.requires_grad]
    assert set(sums) == set(params)
    zeros = {p: torch.zeros_like(p) for p in params}
    for p, total in (expected_sum(gradients, case.weights) if gradients else zeros).items():
        assert_close(sums[p], total.detach())


@every_engine
def test_every_weighted_sum_and_geometry_of_one_engine_is_answered_from_the_same_gradients(engine):
    model, batch = mlp(), data(4)
    gradients = gradients_one_by_one(model, loss, split(batch))
    built = ENGINES[engine](model, loss, batch)
    for radius in (1.0, 0.25):
        assert_close(built.norms(ball(model, radius)), whitened_norms(gradients, ball(model, radius)))
    for weights in (torch.ones(4), torch.tensor([0.0, 1.0, 0.5, 0.0])):
        sums = built.weighted_sum(weights.double())
        for p, total in expected_sum(gradients, weights).items():
            assert_close(sums[p], total)


@every_engine
def test_all_weights_zero_give_zeros(engine):
    model, batch = mlp(), data(3)
    built = ENGINES[engine](model, loss, batch)
    built.norms(ball(model))
    assert all(not total.any() for total in built.weighted_sum(torch.zeros(3).double()).values())


@every_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_models_are_summed_in_float32(engine, dtype):
    model, (x, factor) = mlp(), data(4)
    exact = gradients_one_by_one(model, loss, split((x, factor)))
    order = list(model.parameters())
    low = mlp().to(dtype)
    built = ENGINES[engine](low, loss, (x.to(dtype), factor.to(dtype)))
    norms = built.norms(ball(low))
    sums = built.weighted_sum(torch.ones(4).double())
    assert norms.dtype == torch.float64
    expected = whitened_norms(exact, ball(model))
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(norms, expected, rtol=tolerance, atol=tolerance)
    for p, q in zip(order, low.parameters(), strict=True):
        assert sums[q].dtype == torch.float32
        total = sum(g[p] for g in exact).float()
        torch.testing.assert_close(sums[q], total, rtol=tolerance, atol=tolerance * float(total.abs().max()))


# --- examples whose gradient is not finite -------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["input", "loss"])
def test_a_non_finite_example_has_a_non_finite_norm_and_leaves_the_others_exact(engine, bad, where):
    model, (x, factor) = mlp(), data(4)
    gradients = gradients_one_by_one(model, loss, split((x, factor)))
    if where == "input":
        x[1, 0] = bad
    else:
        factor[1] = bad
    built = ENGINES[engine](model, loss, (x, factor))
    norms = built.norms(ball(model))
    assert not norms[1].isfinite()
    kept = [0, 2, 3]
    assert_close(norms[kept], whitened_norms([gradients[i] for i in kept], ball(model)))
    weights = torch.tensor([1.0, 0.0, 0.5, 2.0]).double()
    sums = built.weighted_sum(weights)
    for p, total in expected_sum(gradients, weights).items():
        assert_close(sums[p], total)
    # The same through the clip, which chooses the weight 0 by itself.
    total = clipped_sum(ENGINES[engine](model, loss, (x, factor)), ball(model))
    assert all(value.isfinite().all() for value in total.values())


@every_engine
def test_a_non_finite_example_is_alone_in_its_embedding_and_convolution(engine):
    torch.manual_seed(0)
    model = Through(
        lambda m, x: m.conv(m.words(x).transpose(1, 2)).tanh(),
        words=nn.Embedding(5, 3),
        conv=nn.Conv1d(3, 2, 2),
    ).double()
    tokens, factor = torch.randint(5, (3, 4)), torch.tensor([1.0, float("nan"), 2.0]).double()
    built = ENGINES[engine](model, loss, (tokens, factor))
    norms = built.norms(ball(model))
    assert norms.isfinite().tolist() == [True, False, True]
    gradients = gradients_one_by_one(model, loss, split((tokens, factor)))
    weights = torch.tensor([1.0, 0.0, 1.0]).double()
    sums = built.weighted_sum(weights)
    for p, total in expected_sum(gradients, weights).items():
        assert_close(sums[p], total)


# --- randomness ---------------------------------------------------------------------------------------


def dropout_model() -> nn.Module:
    torch.manual_seed(3)
    layers = [
        nn.Linear(3, 16),
        nn.Dropout(0.5),
        nn.Tanh(),
        nn.Linear(16, 8),
        nn.Dropout(0.5),
        nn.Linear(8, 2),
    ]
    return nn.Sequential(*layers).double()


HOLDS_GRADIENTS = [
    name for name, engine in ENGINES.items() if isinstance(engine, type) and issubclass(engine, Materialized)
]


def norms_of_single_examples(built: Any, n: int, model: nn.Module) -> Tensor:
    """Returns the norm of each example's gradient, from weighted sums of that example alone."""
    result = []
    for i in range(n):
        sums = built.weighted_sum(torch.eye(n, dtype=torch.float64)[i])
        result.append(sum(float(total.square().sum()) for total in sums.values()) ** 0.5)
    return torch.tensor(result, dtype=torch.float64)


@every_engine
def test_weighted_sum_has_the_dropout_masks_of_the_norms(engine):
    model, batch = dropout_model(), data(5)
    built = ENGINES[engine](model, loss, batch)
    norms = built.norms(ball(model))
    torch.rand(7)  # the user's generator moves on
    assert_close(norms_of_single_examples(built, 5, model), norms)
    assert_close(built.norms(ball(model)), norms)


@pytest.mark.parametrize("engine", HOLDS_GRADIENTS)
@pytest.mark.parametrize("cache_bytes", [0, 1500])  # nothing, or about one example, is kept
def test_dropout_masks_agree_when_gradients_are_computed_a_second_time(engine, cache_bytes):
    class Small(ENGINES[engine]):
        pass

    Small.cache_bytes = cache_bytes
    model, batch = dropout_model(), data(5)
    built = Small(model, loss, batch)
    norms = built.norms(ball(model))
    torch.rand(7)
    assert_close(norms_of_single_examples(built, 5, model), norms)
    assert norms.unique().numel() == 5


@pytest.mark.parametrize("engine", HOLDS_GRADIENTS)
def test_a_second_computation_leaves_the_global_generator_where_it_was(engine):
    class Small(ENGINES[engine]):
        cache_bytes = 0

    model, batch = dropout_model(), data(3)
    built = Small(model, loss, batch)
    built.norms(ball(model))
    torch.rand(7)  # the user's generator moves on
    state = torch.get_rng_state()
    built.weighted_sum(torch.ones(3).double())
    assert torch.equal(torch.get_rng_state(), state)


@every_engine
def test_masks_differ_between_examples_and_between_engines_of_one_batch(engine):
    model = dropout_model()
    x, factor = data(1)
    batch = (x.expand(6, -1).clone(), factor.expand(6).clone())
    first = ENGINES[engine](model, loss, batch).norms(ball(model))
    second = ENGINES[engine](model, loss, batch).norms(ball(model))
    assert first.unique().numel() > 1
    assert not torch.equal(first, second)


@every_engine
def test_a_model_without_randomness_does_not_touch_the_global_generator(engine):
    model, batch = mlp(), data(3)
    state = torch.get_rng_state()
    built = ENGINES[engine](model, loss, batch)
    built.norms(ball(model))
    built.weighted_sum(torch.ones(3).double())
    assert torch.equal(torch.get_rng_state(), state)


# --- the model stays as it is --------------------------------------------------------------------------


def traces(model: nn.Module) -> dict[str, Any]:
    """Collects everything that an engine might leave behind on a model."""
    return {
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            f"{name}.{kind}": len(value)
            for name, module in model.named_modules()
            for kind, value in vars(module).items()
            if "hooks" in kind and isinstance(value, dict)
        },
        "modes": {name: module.training for name, module in model.named_modules()},
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "parameter hooks": [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in model.parameters()],
        "identities": [id(p) for p in model.parameters()] + [id(b) for b in model.buffers()],
        "versions": [p._version for p in model.parameters()],
        "names": list(model.state_dict()),
        "slots": [sorted(vars(p)) for p in model.parameters()],
    }


@every_engine
def test_the_model_is_left_untouched(engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    model = model.double()
    model[0].weight.requires_grad_(False)
    model[2].eval()  # with fixed statistics it mixes no examples; the rest is in training mode
    before = traces(model)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    built = ENGINES[engine](model, loss, data(3))
    built.norms(ball(model))
    built.weighted_sum(torch.ones(3).double())
    assert traces(model) == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    # And it still trains in the ordinary way.
    loss(model, data(3)).sum().backward()
    assert model[4].weight.grad is not None


@every_engine
def test_an_existing_gradient_is_neither_read_nor_changed(engine):
    model, batch = mlp(), data(3)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    built = ENGINES[engine](model, loss, batch)
    norms = built.norms(ball(model))
    sums = built.weighted_sum(torch.ones(3).double())
    gradients = gradients_one_by_one(model, loss, split(batch))
    assert all(bool((p.grad == 7).all()) for p in model.parameters())
    assert_close(norms, whitened_norms(gradients, ball(model)))
    for p, total in expected_sum(gradients, torch.ones(3)).items():
        assert_close(sums[p], total)


@every_engine
def test_engines_work_under_no_grad(engine):
    model, batch = mlp(), data(2)
    gradients = gradients_one_by_one(model, loss, split(batch))
    with torch.no_grad():
        norms = ENGINES[engine](model, loss, batch).norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))


@every_engine
def test_results_carry_no_graph(engine):
    model, batch = mlp(), data(2)
    built = ENGINES[engine](model, loss, batch)
    assert not built.norms(ball(model)).requires_grad
    assert not any(total.requires_grad for total in built.weighted_sum(torch.ones(2).double()).values())


# --- batches ------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["x", "factor"])

CONTAINERS = {
    "dict": (lambda x, f: {"x": x, "factor": f}, lambda b: (b["x"], b["factor"])),
    "nested tuple": (lambda x, f: ((x,), [f]), lambda b: (b[0][0], b[1][0])),
    "namedtuple": (lambda x, f: Pair(x, f), lambda b: (b.x, b.factor)),
    "dict of namedtuple": (lambda x, f: {"pair": Pair(x, [f])}, lambda b: (b["pair"].x, b["pair"].factor[0])),
    "with None": (lambda x, f: {"x": x, "factor": f, "scale": None}, lambda b: (b["x"], b["factor"])),
}


@every_engine
@pytest.mark.parametrize("container", CONTAINERS)
def test_batches_may_be_nested(engine, container):
    pack, unpack = CONTAINERS[container]
    model, batch = mlp(), data(4)
    gradients = gradients_one_by_one(model, loss, split(batch))
    built = ENGINES[engine](model, lambda model, b: loss(model, unpack(b)), pack(*batch))
    norms = built.norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))
    sums = built.weighted_sum(torch.ones(4).double())
    for p, total in expected_sum(gradients, torch.ones(4)).items():
        assert_close(sums[p], total)


@every_engine
def test_a_bare_tensor_is_a_batch(engine):
    model, (x, _) = mlp(), data(4)
    norms = ENGINES[engine](model, lambda model, x: model(x).square().sum(1), x).norms(ball(model))
    gradients = gradients_one_by_one(model, lambda model, x: model(x).square().sum(1), list(x.split(1)))
    assert_close(norms, whitened_norms(gradients, ball(model)))


@every_engine
@pytest.mark.parametrize(
    "batch",
    [(torch.zeros(3, 3), torch.zeros(2)), (torch.zeros(3, 3), torch.tensor(1.0)), ("text", 1.0)],
    ids=["lengths differ", "a tensor without axes", "no tensor"],
)
def test_a_batch_without_a_common_first_length_is_refused(engine, batch):
    with pytest.raises(ValueError, match="batch"):
        ENGINES[engine](mlp().float(), loss, batch)


# --- what is refused ----------------------------------------------------------------------------------

WRONG_LOSSES = {
    "mean over the batch": lambda model, batch: loss(model, batch).mean(),
    "(n, 1)": lambda model, batch: loss(model, batch).unsqueeze(1),
    "(n, T)": lambda model, batch: model(batch[0]).square(),
    "detached": lambda model, batch: loss(model, batch).detach(),
    "constant": lambda model, batch: batch[1],
}


@every_engine
@pytest.mark.parametrize("wrong", WRONG_LOSSES)
def test_losses_other_than_one_differentiable_number_per_example_are_refused(engine, wrong):
    model, batch = mlp(), data(3)
    with pytest.raises(UnsupportedError, match="loss"):
        ENGINES[engine](model, WRONG_LOSSES[wrong], batch).norms(ball(model))


@every_engine
def test_a_loss_that_is_no_tensor_is_refused(engine):
    model, batch = mlp(), data(3)
    with pytest.raises(TypeError, match="tensor"):
        ENGINES[engine](model, lambda model, batch: 1.0, batch).norms(ball(model))


UNVMAPPABLE = {
    "item": lambda m, x: m.layer(x) * (1 + abs(x.sum().item())),
    "control flow": lambda m, x: m.layer(x) if x.sum() > 0 else 2 * m.layer(x),
    "boolean mask": lambda m, x: m.layer(x[x > -9].view(x.shape)),
}


# Layers that vmap does not accept.
RECURRENT = {
    "GRU": lambda: Through(lambda m, x: m.layer(x)[0], layer=nn.GRU(3, 2, batch_first=True)),
    "GRUCell": lambda: Through(lambda m, x: m.layer(x[:, 0]), layer=nn.GRUCell(3, 2)),
    "LSTMCell": lambda: Through(lambda m, x: m.layer(x[:, 0])[0], layer=nn.LSTMCell(3, 2)),
    "RNN": lambda: Through(lambda m, x: m.layer(x)[0], layer=nn.RNN(3, 2, batch_first=True)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", RECURRENT)
def test_recurrent_layers_are_exact_or_refused(engine, layer):
    torch.manual_seed(0)
    model = RECURRENT[layer]().double()
    batch = (torch.randn(3, 4, 3).double(), torch.ones(3).double())
    try:
        norms = ENGINES[engine](model, loss, batch).norms(ball(model))
    except UnsupportedError:
        return
    assert_close(norms, whitened_norms(gradients_one_by_one(model, loss, split(batch)), ball(model)))


@pytest.mark.parametrize("forward", UNVMAPPABLE)
def test_vmap_refuses_what_it_cannot_run_and_names_the_engine_that_can(forward):
    torch.manual_seed(0)
    model = Through(UNVMAPPABLE[forward], layer=nn.Linear(3, 2)).double()
    batch = data(4)
    with pytest.raises(UnsupportedError, match=r"Through.*engine='loop'"):
        Vmap(model, loss, batch).norms(ball(model))
    gradients = gradients_one_by_one(model, loss, split(batch))
    norms = Loop(model, loss, batch).norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))


# --- vmap's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("cache_bytes", [0, 1000, 1 << 30])
def test_chunk_size_and_cache_do_not_change_vmap(chunk_size, cache_bytes):
    class Cached(Vmap):
        pass

    Cached.cache_bytes = cache_bytes
    model, batch = mlp(), data(7)
    gradients = gradients_one_by_one(model, loss, split(batch))
    built = Cached(model, loss, batch, chunk_size=chunk_size)
    weights = torch.tensor([1.0, 0.0, 0.0, 0.3, 0.0, 2.0, 1.0]).double()
    norms = built.norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))
    sums = built.weighted_sum(weights)
    for p, total in expected_sum(gradients, weights).items():
        assert_close(sums[p], total)
