"""A release: its mean and noise variance, the order of its steps, and what it refuses."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from adamas import Geometry, clipped_sum, rules
from adamas.clip import clip_weights
from adamas.engines import ENGINES, Loop, Stacked
from adamas.noise import GaussianNoise
from adamas.privatize import _rounding_slack
from tests.support.releases import parameter, released, rows

NAN, INF = float("nan"), float("inf")


def release(engines, geometry, *, z=0.0, batch_size=10, **options):
    return released(geometry, engines=engines, noise_multiplier=z, batch_size=batch_size, **options)


def test_the_divisor_is_the_expected_batch_size_and_not_the_realised_one():
    p = parameter(2)
    engine = Stacked({p: rows([3.0, 4.0], [0.3, 0.4], [0.0, 0.0])})  # 3 examples where 10 are expected
    made = release([(engine, 0)], Geometry.ball([p], 1.0), z=2.0, batch_size=10)
    noise = GaussianNoise(0).normal_(torch.empty(2, dtype=torch.float64))
    torch.testing.assert_close(made.mean[p], (rows([0.9, 1.2])[0] + 2.0 * noise) / 10, rtol=1e-12, atol=0)
    assert made.noise_variance[p] == pytest.approx((2.0 / 10) ** 2)


def test_the_stated_noise_variance_is_that_of_each_coordinate():
    torch.manual_seed(0)
    p, q = parameter(3), parameter()
    scale = torch.tensor([0.5, 1.0, 4.0]).double()
    geometry = Geometry(None, {p: scale, q: 0.25})
    made = release([], geometry, z=1.5, batch_size=6)
    torch.testing.assert_close(made.noise_variance[p], (scale * 1.5 / 6) ** 2)
    assert made.noise_variance[q] == pytest.approx((0.25 * 1.5 / 6) ** 2)
    noise = GaussianNoise(1)
    drawn = torch.stack(
        [release([], geometry, z=1.5, batch_size=6, noise=noise).mean[p] for _ in range(4000)]
    )
    # The variance of 4000 values has a standard deviation of 2.2%, so 12% is more than 5 of them.
    torch.testing.assert_close(drawn.var(0), made.noise_variance[p], rtol=0.12, atol=0)
    assert bool((drawn.mean(0).abs() < 5 * (made.noise_variance[p] / 4000).sqrt()).all())


def test_missing_examples_count_as_examples_at_the_center():
    p = parameter(2)
    center, scale = torch.tensor([1.0, -2.0]).double(), torch.tensor([2.0, 0.5]).double()
    geometry = Geometry({p: center}, {p: scale})
    gradients = rows([1.5, -2.1], [9.0, 9.0], [NAN, 0.0])  # inside the ball, clipped, dropped
    made = release([(Stacked({p: gradients}), 0)], geometry, batch_size=10)
    expected = center + scale * clipped_sum({p: gradients}, geometry)[p] / 10
    torch.testing.assert_close(made.mean[p], expected, rtol=1e-12, atol=1e-12)
    # Put the seven missing examples and the non-finite one at the center.
    whole = torch.cat([gradients[:2], center.expand(8, 2)])
    same = release([(Stacked({p: whole}), 0)], geometry, batch_size=10)
    torch.testing.assert_close(made.mean[p], same.mean[p], rtol=1e-12, atol=1e-12)


def test_an_empty_batch_gives_noise_around_the_center():
    p = parameter(4)
    geometry = Geometry({p: 3.0}, {p: 2.0})
    noise = GaussianNoise(0).normal_(torch.empty(4, dtype=torch.float64))
    empty = Stacked({p: torch.zeros(0, 4).double()})
    for engines in ([], [(empty, 0)]):
        made = release(engines, geometry, z=1.0, batch_size=5)
        torch.testing.assert_close(made.mean[p], 3.0 + 2.0 / 5 * noise, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("sizes", [[7], [3, 4], [1, 0, 6], [1] * 7])
def test_micro_batches_give_the_release_of_the_whole_batch(centered, sizes):
    torch.manual_seed(0)
    p, q = parameter(3), parameter(2, 2)
    g, h = 3 * torch.randn(7, 3).double(), torch.randn(7, 2, 2).double()
    center = {p: torch.randn(3).double(), q: 0.2} if centered else None
    geometry = Geometry(center, {p: 0.7, q: torch.rand(2, 2).double() + 0.5})
    whole = release([(Stacked({p: g, q: h}), 0)], geometry, z=1.0)
    parts = zip(g.split(sizes), h.split(sizes), strict=True)
    made = release([(Stacked({p: a, q: b}), 0) for a, b in parts], geometry, z=1.0)
    for x in (p, q):
        torch.testing.assert_close(made.mean[x], whole.mean[x], rtol=1e-12, atol=1e-12)
        assert torch.equal(torch.as_tensor(made.noise_variance[x]), torch.as_tensor(whole.noise_variance[x]))


def test_padding_does_not_change_the_release():
    p = parameter(2)
    geometry = Geometry({p: 0.5}, {p: 1.0})
    real, padding = rows([3.0, 4.0], [0.3, 0.4]), rows([7.0, 7.0], [0.1, 0.0], [NAN, 1.0])
    plain = release([(Stacked({p: real}), 0)], geometry, z=1.0)
    padded = release([(Stacked({p: torch.cat([real, padding])}), 3)], geometry, z=1.0)
    torch.testing.assert_close(padded.mean[p], plain.mean[p], rtol=1e-12, atol=1e-12)
    only = release([(Stacked({p: real}), 0), (Stacked({p: padding}), 3)], geometry, z=1.0)
    torch.testing.assert_close(only.mean[p], plain.mean[p], rtol=1e-12, atol=1e-12)


def test_a_release_is_recorded_once_after_the_data_and_before_the_noise():
    p, q = parameter(2), parameter(2, dtype=torch.float32)  # two dtypes, so noise is drawn more than once
    noise = GaussianNoise(0)
    events = []

    def engines() -> Iterator[tuple[Stacked, int]]:
        for i in range(2):
            events.append(f"micro-batch {i}")
            yield Stacked({p: rows([1.0, 1.0]), q: torch.ones(1, 2)}), 0

    def charge(_: object) -> tuple[int, ...]:
        events.append(f"recorded after {noise.draws} draws")
        return ()

    geometry = Geometry.ball([p, q], 1.0)
    release(engines(), geometry, z=1.0, batch_size=2, noise=noise, charge=charge)
    assert events == ["micro-batch 0", "micro-batch 1", "recorded after 0 draws"]
    assert noise.draws > 0


def test_if_recording_fails_nothing_is_drawn_or_released():
    p = parameter(2)
    noise = GaussianNoise(0)

    def charge(_: object) -> tuple[int, ...]:
        raise OSError("the ledger's disk is full")

    with pytest.raises(OSError, match="disk"):
        release(
            [(Stacked({p: rows([1.0, 1.0])}), 0)], Geometry.ball([p], 1.0), z=1.0, noise=noise, charge=charge
        )
    assert noise.draws == 0
    assert p.grad is None


def test_without_noise_and_clipping_the_release_is_the_mean_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(8, 3, dtype=torch.float64)
    loss = lambda model, x: model(x).square().sum(1)  # noqa: E731
    loss(model, x).mean().backward()
    for engine in ENGINES.values():
        made = release([(engine(model, loss, x), 0)], Geometry.ball(model.parameters(), INF), batch_size=8)
        for p in model.parameters():
            torch.testing.assert_close(made.mean[p], p.grad, rtol=1e-12, atol=1e-12)
            assert made.noise_variance[p] == 0


def test_an_unused_parameter_gets_noise_like_the_others():
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(50, 40)}).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    for engine in ENGINES.values():
        built = engine(model, lambda model, x: model["used"](x).sum(1), x)
        made = release([(built, 0)], Geometry.ball(model.parameters(), 1.0), z=1.0, batch_size=4)
        # The standard deviation of 2000 values is off by 1.6%, so 8% is 5 standard deviations.
        assert float(made.mean[model["unused"].weight].std()) == pytest.approx(1 / 4, rel=0.08)
        assert made.noise_variance[model["unused"].weight] == pytest.approx(1 / 16)


def test_noise_is_independent_between_parameters():
    params = [parameter(500) for _ in range(3)] + [parameter(500, dtype=torch.float32) for _ in range(2)]
    made = release([], Geometry.ball(params, 1.0), z=1.0, batch_size=1)
    for a, b in itertools.combinations(params, 2):
        correlation = torch.corrcoef(torch.stack([made.mean[a], made.mean[b].double()]))[0, 1]
        assert abs(float(correlation)) < 5 / 500**0.5


def test_bfloat16_parameters_are_released_in_float32_and_written_in_bfloat16():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).bfloat16()
    x = torch.randn(5, 3).bfloat16()
    engine = Loop(model, lambda model, x: model(x).sum(1), x)
    made = release([(engine, 0)], Geometry.ball(model.parameters(), 0.1), z=1.0, batch_size=5)
    noise = GaussianNoise(0).normal_(torch.empty(8))
    x = x.float()
    clipped = sum(0.1 * g / max(0.1, float(g.norm())) for g in torch.cat([x, x, torch.ones(5, 2)], 1))
    expected = (clipped[:6].view(2, 3) + 0.1 * noise[:6].view(2, 3)) / 5
    assert made.mean[model.weight].dtype == torch.float32
    torch.testing.assert_close(made.mean[model.weight], expected, rtol=1e-5, atol=1e-6)
    rule = rules.SGD(model.parameters(), lr=1.0)
    made.write_to(rule)
    assert model.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(model.weight.grad, expected.bfloat16())


def test_scale_and_center_may_have_another_dtype_than_the_parameter():
    p = parameter(3, dtype=torch.float32)
    scale, center = torch.rand(3).double() + 1, torch.randn(3).double()
    gradients = torch.randn(2, 3)
    made = release([(Stacked({p: gradients}), 0)], Geometry({p: center}, {p: scale}), z=1.0)
    same = Geometry({p: center.float()}, {p: scale.float()})
    expected = release([(Stacked({p: gradients}), 0)], same, z=1.0)
    assert made.mean[p].dtype == torch.float32
    torch.testing.assert_close(made.mean[p], expected.mean[p], rtol=1e-5, atol=1e-6)


# (noise multiplier, expected batch size, radius)
UNRELEASABLE = [(1.0, 0, 1.0), (1.0, -3, 1.0), (-1.0, 2, 1.0), (NAN, 2, 1.0), (INF, 2, 1.0), (1.0, 2, INF)]


@pytest.mark.parametrize(("z", "batch_size", "radius"), UNRELEASABLE)
def test_bad_arguments_are_refused_before_the_release_is_recorded(z, batch_size, radius):
    p = parameter(2)
    recorded = []
    engine = Stacked({p: rows([1.0, 1.0])})
    with pytest.raises(ValueError, match="Expected"):
        release(
            [(engine, 0)],
            Geometry.ball([p], radius),
            z=z,
            batch_size=batch_size,
            charge=lambda _: recorded.append(1) or (),
        )
    assert not recorded


def test_non_finite_examples_do_not_change_the_release():
    p = parameter(2)
    good, bad = rows([3.0, 4.0], [0.1, 0.0]), rows([NAN, 1.0], [INF, INF], [-INF, 0.0])
    geometry = Geometry.ball([p], 1.0)
    clean = release([(Stacked({p: good}), 0)], geometry, z=1.0)
    made = release([(Stacked({p: torch.cat([bad, good])}), 0)], geometry, z=1.0)
    torch.testing.assert_close(made.mean[p], clean.mean[p], rtol=1e-12, atol=0)


def test_absolute_values_of_the_sum_are_taken_before_the_noise():
    p = parameter(2)
    gradients = Stacked({p: rows([0.3, -0.4], [0.3, -0.4], [-0.9, 0.0])})
    options = {"z": 0.5, "batch_size": 2, "seed": 3, "absolute": True}
    drawn = GaussianNoise(3).normal_(torch.empty(2, dtype=torch.float64), 0.25)
    made = release([(gradients, 0)], Geometry.ball([p]), **options)
    torch.testing.assert_close(made.mean[p], torch.tensor([0.15, 0.4], dtype=torch.float64) + drawn)
    with pytest.raises(ValueError, match="absolute"):
        release([(gradients, 0)], Geometry({p: 1.0}, {p: 1.0}), **options)


@pytest.mark.parametrize(("length", "n"), [(10.0, 4096), (1000.0, 4096), (15_000.0, 256), (100_000.0, 10)])
def test_with_rounding_around_a_far_center_the_sensitivity_is_at_most_one(length, n):
    # The worst case for float32 sums: all examples near the center, at almost the radius.
    torch.manual_seed(0)
    d = 500
    model = nn.Linear(d, 1, bias=False)
    p = model.weight
    center = torch.randn(1, d)
    center = center / center.norm() * length
    away = torch.randn(n, d)
    examples = center + away / away.norm(dim=1, keepdim=True) * 0.999
    geometry = Geometry({p: center}, {p: 1.0})
    radius = 1 - _rounding_slack(geometry, n, exact=False)
    assert radius < 1

    def clipped(x: Tensor) -> Tensor:
        engine = ENGINES["bookkeeping"](model, lambda model, x: model(x).squeeze(1), x)
        weights = clip_weights(engine.norms(geometry)).mul_(radius)
        total = engine.weighted_sum(weights)[p]
        return total.double() - float(weights.sum()) * center.double()

    whole = clipped(examples)
    for gone in range(0, n, n // 4):
        assert float((whole - clipped(examples[torch.arange(n) != gone])).norm()) <= 1


def test_a_center_too_far_away_for_float32_is_refused():
    p = parameter(2, dtype=torch.float32)
    far = Geometry({p: 1e9}, {p: 1.0})
    with pytest.raises(ValueError, match="center"):
        release([], far)
    double = parameter(2)
    release([], Geometry({double: 1e9}, {double: 1.0}))
