"""`adamas.suggest` keeps budgets, refuses what cannot be, and the numbers in its reasons are right."""

import itertools
import math
import re

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import calibrate
from adamas.rules import RULES
from adamas.suggestions import choices, evidence
from adamas.suggestions.noise import RunNoise, noise_of
from adamas.suggestions.request import FEWEST_EXAMPLES

SIZES = {"n": 50_000, "parameters": 100_000, "epsilon": 3.0, "epochs": 5}


def suggested(**changes):
    return adamas.suggest(**{**SIZES, "accountant": "rdp", **changes})


@pytest.mark.parametrize(("n", "epsilon", "epochs"), [(5000, 3.0, 5), (500, 1.0, 20)])
def test_the_noise_keeps_the_budget_and_is_the_smallest_that_does(n, epsilon, epochs):
    made = suggested(n=n, epsilon=epsilon, epochs=epochs, accountant="pld")
    assert made.steps == epochs * math.ceil(n / made.batch_size)
    run = {"sampling_rate": made.batch_size / n, "steps": made.steps, "delta": made.delta}
    assert calibrate.epsilon(noise_multiplier=made.noise_multiplier, **run) <= epsilon
    assert calibrate.epsilon(noise_multiplier=made.noise_multiplier - 2e-4, **run) > epsilon


@pytest.mark.slow
def test_make_private_takes_the_options_and_computes_the_same_noise():
    torch.manual_seed(0)
    x = torch.randn(400, 3)
    model = torch.nn.Linear(3, 2)
    made = adamas.suggest(n=400, parameters=8, epsilon=2.0, epochs=3)

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    data = TensorDataset(x, (x.sum(1) > 0).long())
    run = adamas.make_private(model, made.make_rule(model.parameters()), data, loss, **made.options())
    assert run.noise_multiplier == made.noise_multiplier
    assert run.steps == made.steps
    assert run.rule.param_groups[0]["lr"] == made.lr
    for _ in run:
        pass
    assert run.epsilon() <= 2.0
    names = {"adamas": adamas, "model": model, "dataset": data, "loss": loss}
    exec(made.snippet(), names)
    assert names["run"].noise_multiplier == made.noise_multiplier
    assert type(names["rule"]) is RULES[made.rule]
    assert names["rule"].param_groups[0]["lr"] == made.lr


def noise_of_the_mean(made):
    return made.noise_multiplier / made.batch_size / made.steps**0.5


@pytest.mark.parametrize(
    ("name", "values"),
    [("epsilon", [0.5, 1.0, 8.0]), ("n", [1000, 10_000]), ("epochs", [1, 4])],
)
def test_more_budget_data_or_passes_give_less_noise(name, values):
    noises = [noise_of_the_mean(suggested(**{name: value})) for value in values]
    assert all(later < earlier for earlier, later in itertools.pairwise(noises)), noises


def test_a_smaller_delta_costs_noise_and_the_default_is_below_a_tenth_of_one_over_n():
    assert noise_of_the_mean(suggested(delta=1e-9)) > noise_of_the_mean(suggested(delta=1e-6))
    for n in (100, 999, 60_000, 12_345_678):
        delta = choices.default_delta(n)
        assert 0.9 / (10 * n) < delta <= 1 / (10 * n)
        assert float(f"{delta:.1e}") == delta


def test_the_rate_falls_with_the_steps_and_the_batch_leaves_enough_of_them():
    made = [suggested(epochs=epochs) for epochs in (1, 5)]
    assert all(one.steps >= choices.FEWEST_STEPS for one in made)
    for one in made:  # twice the batch would leave too few
        assert one.epochs * SIZES["n"] / (2 * one.batch_size) < choices.FEWEST_STEPS
        assert one.lr == pytest.approx(min(0.03, 1.25 / one.steps), rel=0.05)
    saturated = adamas.suggest(n=20_000, parameters=10, epsilon=1.0, epochs=25, accountant="rdp")
    means = {
        batch: noise_of(20_000, batch, 25, 1.0, saturated.delta, "rdp").of_mean(10)
        for batch in (saturated.batch_size // 2, saturated.batch_size, 8192)
    }
    assert saturated.batch_size < 8192 < 20_000 * 25 / choices.FEWEST_STEPS < 2 * 8192
    assert means[saturated.batch_size] <= 1.03 * means[8192] < means[saturated.batch_size // 2]
    assert "since 8192 has at most 3% less noise" in saturated.reasons[2]
    few = adamas.suggest(n=FEWEST_EXAMPLES, parameters=10, epsilon=1.0, epochs=1)
    assert few.batch_size == choices.SMALLEST_BATCH
    assert few.steps < choices.FEWEST_STEPS
    assert "fewer than" in few.reasons[2]


def test_the_rule_is_the_first_one_whose_state_fits():
    p = SIZES["parameters"]
    wanted = [
        (None, "adam-bc", {}),
        (8 * p, "adam-bc", {}),
        (8 * p - 1, "sgd", {"momentum": 0.9}),
        (4 * p - 1, "sgd", {}),
        (0, "sgd", {}),
    ]
    for memory, rule, options in wanted:
        made = suggested(memory=memory)
        assert (made.rule, dict(made.rule_options)) == (rule, options), memory


@pytest.mark.parametrize("name", evidence.RULES)
def test_the_bytes_of_state_are_those_of_the_rule(name):
    one = evidence.RULES[name]
    p = torch.nn.Parameter(torch.zeros(1000))
    rule = RULES[one.rule]([p], lr=0.1, **one.options)
    adamas.PrivateGradient({p: torch.ones(1000)}, {p: 1.0}).write_to(rule)
    rule.step()
    tensors = [v for v in rule.state[p].values() if torch.is_tensor(v) and v.numel() == 1000]
    assert sum(v.numel() * v.element_size() for v in tensors) / 1000 == one.state_bytes


def test_hours_limit_the_passes():
    made = suggested(epochs=None, hours=0.5, examples_per_second=100.0)  # 180,000 examples: 3.6 passes
    assert made.epochs == 3
    assert made.seconds == 3 * 50_000 / 100
    assert "0.5 hours allow 3" in made.reasons[3]
    assert "25 minutes" in made.reasons[3]
    many = suggested(epochs=None, hours=100.0, examples_per_second=1000.0)
    assert many.epochs == choices.MOST_EPOCHS
    assert "allow 7200" in many.reasons[3]
    assert "Thin evidence" in many.reasons[3]
    assert suggested(epochs=None).epochs == choices.EPOCHS


REFUSED = [
    ({"n": 0}, "n=0"),
    ({"n": 50}, "n=50 >= 100.*Collect more"),
    ({"n": 2.5}, "n=2.5"),
    ({"parameters": 0}, "parameters=0"),
    ({"epsilon": 0.0}, "epsilon=0.0"),
    ({"epsilon": float("nan")}, "epsilon=nan"),
    ({"epsilon": 2000.0}, "epsilon=2000.0"),
    ({"delta": 1e-3}, "delta=0.001 < 1/n.*Lower delta"),
    ({"delta": 0.0}, "delta=0.0"),
    ({"epochs": 0}, "epochs=0"),
    ({"hours": 1.0}, "at most one of epochs and hours"),
    ({"epochs": None, "hours": 1.0}, "examples_per_second with hours=1.0.*Measure"),
    ({"epochs": None, "hours": 1.0, "examples_per_second": 0.0}, "examples_per_second=0.0"),
    ({"epochs": None, "hours": -1.0, "examples_per_second": 1.0}, "hours=-1.0"),
    ({"memory": -1}, "memory=-1"),
    ({"accountant": "gdp"}, "accountant"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_impossible_requests_are_refused_by_name(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        suggested(**changes)


def test_too_little_time_is_refused_with_the_time_that_is_enough():
    with pytest.raises(ValueError, match="one pass") as error:
        suggested(epochs=None, hours=0.1, examples_per_second=100.0)
    assert "8 minutes" in str(error.value)
    hours = float(re.search(r"Give ([\d.]+) hours", str(error.value)).group(1))
    assert suggested(epochs=None, hours=hours, examples_per_second=100.0).epochs == 1


def test_the_suggestion_is_a_pure_function_and_cannot_be_changed():
    assert suggested() == suggested()
    with pytest.raises(AttributeError):
        suggested().lr = 1.0


def numbers(text):
    return [float(x) for x in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def three(value):
    return float(f"{value:.3g}")


@pytest.mark.parametrize("memory", [None, 500_000, 1000])
def test_every_number_in_the_reasons_follows_from_the_sizes(memory):
    made = suggested(memory=memory, epochs=None, hours=1.0, examples_per_second=200.0)
    n, p = made.n, made.parameters
    assert (made.steps, made.epochs) == (14 * math.ceil(n / made.batch_size), 14)  # 720,000 examples
    rule, rate, batch, epochs, clip, outlook = map(numbers, made.reasons[:6])
    label = "sgd with momentum 0.9" if made.rule_options else made.rule
    one = evidence.RULES[label]
    named = [x for name, each in evidence.RULES.items() for x in [*numbers(name), each.behind]]
    fits = [] if memory is None else [one.state_bytes * p, memory]
    assert rule == [*numbers(label), *fits, *named]

    z = calibrate.noise_multiplier(
        epsilon=3.0, delta=made.delta, sampling_rate=made.batch_size / n, steps=made.steps, accountant="rdp"
    )
    ratio = z / made.batch_size
    over = ratio * made.steps**0.5 if one.walk else made.steps
    assert made.lr == float(f"{min(one.largest, one.scale / over):.2g}")
    formula = [one.scale, *([three(ratio)] if one.walk else []), made.steps, one.largest]
    assert rate == [made.lr, *formula, one.lost, one.constant, one.constant_lost]

    small = made.batch_size // 4
    steps = 14 * math.ceil(n / small)
    z_small = calibrate.noise_multiplier(
        epsilon=3.0, delta=made.delta, sampling_rate=small / n, steps=steps, accountant="rdp"
    )
    mean, mean_small = (
        three(math.sqrt(p / t) * z / b)
        for z, b, t in ((z, made.batch_size, made.steps), (z_small, small, steps))
    )
    assert batch == [
        *(made.batch_size, choices.FEWEST_STEPS, made.steps),
        *(z, made.batch_size, three(ratio), small, z_small, small, three(z_small / small)),
        *(mean, mean_small),
    ]
    assert epochs == [14, 1, 14, *evidence.EPOCHS_TRIED, 58]  # 14 * 250 s = 58 minutes
    assert clip == [1]
    assert outlook == [z, 3, three(made.delta), p, three(math.sqrt(p) * ratio), made.steps, mean, 1]


def test_a_run_with_more_noise_than_any_trial_says_so():
    hopeless = suggested(n=1000, parameters=10_000_000, epsilon=0.5)
    assert "expect little" in hopeless.reasons[5]
    assert "expect little" not in suggested().reasons[5]


def hints(**sizes):
    return adamas.suggest(**({"epsilon": 1.0, "delta": 1e-5, "accountant": "rdp"} | sizes)).reasons[6:]


def test_few_parameters_point_to_the_settings_of_tables():
    (hint,) = hints(n=4000, parameters=17)
    assert hint.startswith("tables: 17 parameters")
    assert "adamas train --data FILE" in hint
    assert "adamas.tabular" in hint
    assert hints(n=4000, parameters=choices.TABLE_PARAMETERS + 1) == ()


def test_large_batches_point_to_the_size_of_micro_batches():
    (hint,) = hints(n=60_000, parameters=80_000, epochs=5)
    assert hint.startswith("memory: 4096 examples")
    assert "micro_batch_size" in hint
    assert hints(n=6000, parameters=80_000, epochs=5) == ()


def test_the_noise_of_the_mean_is_that_of_averaged_releases():
    noise = RunNoise(batch_size=10, steps=400, multiplier=2.0)
    draws = torch.randn(400, 2000) * 2.0 / 10
    assert noise.of_mean(2000) == pytest.approx(draws.mean(0).norm().item(), rel=0.1)  # 3 deviations are 5%
    assert noise.of_step(2000) == pytest.approx(draws[0].norm().item(), rel=0.1)
    assert noise_of(1000, 30, 2, 3.0, 1e-5, "rdp").steps == 68
