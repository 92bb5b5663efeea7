"""The compiled steps of the corrected rules equal those of torch up to rounding."""

import pytest
import torch
from torch import nn

from adamas import PrivateGradient, rules
from adamas.rules import _adam_family

kernel = pytest.importorskip("adamas.rules._adam_kernel")
if not kernel.available():
    pytest.skip("Numba is missing", allow_module_level=True)

SHAPES = [(70, 1000), (3,), (), (40_000,)]
VARIANCES = {
    "a number": lambda shape, t: 0.2,
    "none": lambda shape, t: 0.0,
    "by step": lambda shape, t: 0.1 * (1 + t % 3),
    "by coordinate": lambda shape, t: torch.linspace(0.1, 0.3, max(1, int(torch.Size(shape).numel()))).view(
        shape
    ),
    "changing": lambda shape, t: 0.2 if t < 5 else torch.full(shape, 0.3),
}
RULES = {
    "adam-bc": lambda p: rules.AdamBC(p, lr=0.01),
    "adam-bc with a floor": lambda p: rules.AdamBC(p, lr=0.01, floor=0.05),
    "adamw-bc": lambda p: rules.AdamWBC(p, lr=0.01, betas=(0.5, 0.9), weight_decay=0.3),
    "macadam-bc": lambda p: rules.MacAdamBC(p, lr=0.01, h1=1e-3, h2=2.0),
    "macadam-bc as published": lambda p: rules.MacAdamBC(
        p, lr=0.01, floor=0.05, h1=1e-3, h2=2.0, kappa="paper", noise_correction="paper", phi="paper"
    ),
    "scale-then-privatize": lambda p: rules.ScaleThenPrivatize(p, lr=0.01, floor="auto"),
}


def trained(rule_of, variance_of, steps=20, gradient=None):
    """Steps a rule on random releases; `gradient` replaces five values of the fourth."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    rule = rule_of(params)
    for t in range(steps):
        mean = {p: torch.randn(p.shape) + 0.3 for p in params}
        if gradient is not None and t == 3:
            mean[params[0]][0, :5] = gradient
        PrivateGradient(mean, {p: variance_of(p.shape, t) for p in params}).write_to(rule)
        rule.step()
    return params, rule


@pytest.fixture
def calls(monkeypatch):
    """Records the calls of the kernel."""
    made = []
    real = kernel.call
    monkeypatch.setattr(kernel, "call", lambda *arguments: made.append(1) or real(*arguments))
    return made


@pytest.fixture
def without_kernel(monkeypatch):
    """Returns a function that leaves all later steps to torch."""

    def switch():
        monkeypatch.setattr(_adam_family, "kernel", lambda: None)

    return switch


@pytest.mark.slow
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("name", RULES)
def test_compiled_steps_equal_those_of_torch(name, variance, calls, without_kernel):
    fast, fast_rule = trained(RULES[name], VARIANCES[variance])
    assert len(calls) >= 20 * 3
    without_kernel()
    calls.clear()
    slow, slow_rule = trained(RULES[name], VARIANCES[variance])
    assert not calls
    for p, q in zip(fast, slow, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-5)
        for key, value in fast_rule.state[p].items():
            torch.testing.assert_close(value, slow_rule.state[q][key], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_number_of_threads_changes_no_bit(name):
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(trained(RULES[name], VARIANCES["by coordinate"], steps=5)[0])
    for other in results[1:]:
        for p, q in zip(results[0], other, strict=True):
            assert torch.equal(p, q)


@pytest.mark.parametrize("gradient", [float("nan"), float("inf")])
def test_a_non_finite_gradient_affects_its_own_coordinates_only(gradient, without_kernel):
    fast, _ = trained(RULES["adam-bc"], VARIANCES["a number"], steps=6, gradient=gradient)
    without_kernel()
    slow, _ = trained(RULES["adam-bc"], VARIANCES["a number"], steps=6, gradient=gradient)
    for p, q in zip(fast, slow, strict=True):
        assert torch.equal(p.isnan(), q.isnan())
    assert int(fast[0].isnan().sum()) == 5


def test_autograd_notices_the_in_place_change():
    p = nn.Parameter(torch.ones(3))
    rule = rules.AdamBC([p])
    loss = p.square().sum()
    PrivateGradient({p: torch.ones(3)}, {p: 0.1}).write_to(rule)
    rule.step()
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_other_dtypes_are_left_to_torch(calls):
    for dtype in (torch.float64, torch.bfloat16):
        p = nn.Parameter(torch.ones(3, dtype=dtype))
        rule = rules.AdamBC([p], lr=0.5, floor=1.0)
        PrivateGradient({p: torch.ones(3, dtype=dtype)}, {p: 0.1}).write_to(rule)
        rule.step()
        assert p.tolist() != [1.0] * 3
    assert not calls
