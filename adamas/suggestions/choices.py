"""Chooses each setting from public sizes, with the sentences that say why."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from adamas._words import duration, limit
from adamas.suggestions import evidence
from adamas.suggestions.noise import RunNoise, noise_of
from adamas.suggestions.request import Request

CLIP_NORM = 1.0
"""The clip norm of all trials."""

EPOCHS = 10
"""Epochs if neither epochs nor hours are given."""

MOST_EPOCHS = 30
"""The most epochs that are suggested, however much time there is."""

FEWEST_STEPS = 40
"""The batch is the largest power of two that leaves this many steps."""

GAIN = 1.03
"""A larger batch must lower the noise of the mean of all releases by this factor, or it is not taken."""

SMALLEST_BATCH = 16
"""A batch has this many examples at least, even if that leaves fewer steps."""


TABLE_PARAMETERS = 2000
"""With at most as many parameters the model may be a linear one of a table."""

LARGE_BATCH = 1024
"""Batches of this size or more get a hint about memory."""


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen, and why."""

    value: Any
    reason: str


@dataclass(frozen=True)
class RuleChoice:
    """A rule that was chosen, its options without the rate, and why."""

    name: str
    options: Mapping[str, Any]
    reason: str


def choose_epochs(request: Request) -> Choice:
    """Takes the epochs that are asked for, or those that the time allows."""
    if request.epochs is not None:
        return Choice(
            request.epochs, f"epochs: {request.epochs}, as you asked." + _time(request, request.epochs)
        )
    affordable = request.affordable_epochs
    if affordable is None:
        reason = f"epochs: {EPOCHS}, since neither epochs nor hours are given. {_thin(EPOCHS)}"
        return Choice(EPOCHS, reason + _time(request, EPOCHS))
    epochs = min(affordable, MOST_EPOCHS)
    assert request.hours is not None
    reason = f"epochs: {epochs}. {limit(request.hours)} hours allow {affordable}"
    if affordable > MOST_EPOCHS:
        reason += f", and {MOST_EPOCHS} are the most that is suggested"
    return Choice(epochs, f"{reason}. {_thin(epochs)}" + _time(request, epochs))


def _thin(epochs: int) -> str:
    least, most = evidence.EPOCHS_TRIED
    if epochs <= most:
        return f"Our trials have {least} to {most}."
    return f"Thin evidence: our trials have {least} to {most}."


def _time(request: Request, epochs: int) -> str:
    seconds = request.seconds(epochs)
    return "" if seconds is None else f" They take about {duration(seconds)}."


def choose_batch_size(request: Request, epochs: int) -> Choice:
    """Takes the largest batch that leaves enough steps, unless a smaller one has hardly more noise."""
    largest = max(SMALLEST_BATCH, epochs * request.n / FEWEST_STEPS)
    batch = 2 ** math.floor(math.log2(min(largest, request.n)))
    chosen = first = run_noise(request, batch, epochs)
    while batch > SMALLEST_BATCH:
        half = run_noise(request, batch // 2, epochs)
        if half.of_mean(request.parameters) > GAIN * first.of_mean(request.parameters):
            break
        chosen, batch = half, batch // 2
    small = run_noise(request, batch // 4, epochs)
    if chosen.steps < FEWEST_STEPS:
        text = f"the smallest that is suggested, although it leaves fewer than {FEWEST_STEPS} steps"
    elif chosen is first:
        text = f"the largest power of two with {FEWEST_STEPS} steps or more"
    else:
        text = f"since {first.batch_size} has at most {100 * (GAIN - 1):.0f}% less noise and fewer steps"
    means = [noise.of_mean(request.parameters) for noise in (chosen, small)]
    reason = (
        f"batch size: {batch}, {text} ({chosen.steps}). Its noise-to-batch ratio z/B is {_ratio(chosen)}; "
        f"with {small.batch_size} it is {_ratio(small)}. The mean of all releases has noise of norm "
        f"{means[0]:.3g} instead of {means[1]:.3g}, at the same epsilon and time."
    )
    return Choice(batch, reason)


def _ratio(noise: RunNoise) -> str:
    return f"{noise.multiplier:g}/{noise.batch_size} = {noise.ratio:.3g}"


def choose_rule(request: Request) -> RuleChoice:
    """Takes the first rule whose state fits the memory; the last one has none."""
    behind = "; ".join(f"{name} {one.behind:.1f}" for name, one in evidence.RULES.items())
    reason = (
        "Points behind the best of all rules and rates in our trials, each rule at the rate of its formula: "
        f"{behind}. Differences below a point are within the noise of one seed."
    )
    for name, one in evidence.RULES.items():
        needed = one.state_bytes * request.parameters
        if request.memory is None:
            return RuleChoice(one.rule, one.options, f"rule: {name}. {reason}")
        if needed <= request.memory:
            fits = f"Its state takes {needed:.0f} bytes of {request.memory:.0f}."
            return RuleChoice(one.rule, one.options, f"rule: {name}. {fits} {reason}")
    raise AssertionError("the last rule has no state")


def choose_rate(chosen: RuleChoice, noise: RunNoise) -> Choice:
    """Takes the rate that fits the rule, the number of steps and the noise."""
    one = _evidence_of(chosen)
    shown = float(f"{one.rate(noise):.2g}")
    reason = (
        f"lr: {shown:g} = {one.formula(noise)}. In the trials the formula is {one.lost:.1f} points behind "
        f"the best rate of each setting, and the best constant rate, {one.constant:g}, is "
        f"{one.constant_lost:.1f} behind."
    )
    least, most = evidence.STEPS_TRIED
    if not least <= noise.steps <= most:
        reason += f" Thin evidence: the trials have {least} to {most} steps, and this run has {noise.steps}."
    return Choice(shown, reason)


def _evidence_of(chosen: RuleChoice) -> evidence.Evidence:
    wanted = (chosen.name, chosen.options)
    return next(one for one in evidence.RULES.values() if (one.rule, one.options) == wanted)


def outlook(request: Request, noise: RunNoise) -> str:
    """Tells how much of a release is noise, and what helps if it is too much."""
    step, mean = noise.of_step(request.parameters), noise.of_mean(request.parameters)
    text = (
        f"noise: multiplier {noise.multiplier:g} keeps epsilon {limit(request.epsilon)} at delta "
        f"{request.delta:.3g}. One release has noise of norm sqrt({request.parameters}) z/B = {step:.3g} "
        f"clip norms, the mean of all {noise.steps} has {mean:.3g}; a gradient has 1 at most."
    )
    if mean > evidence.LARGEST_MEAN_NOISE:
        text += (
            f" That is more than the {evidence.LARGEST_MEAN_NOISE:.2g} of our noisiest trial: expect little. "
            "Train fewer parameters (adamas.finetune), use pretrained features, collect more examples, or "
            "raise epsilon."
        )
    return text


def hints(request: Request, batch_size: int) -> list[str]:
    """Points to the settings for tables if there are few parameters, and to memory if batches are large."""
    found = []
    if request.parameters <= TABLE_PARAMETERS:
        found.append(
            f"tables: {request.parameters:,} parameters may be those of a linear model of a table. For a "
            "table in a file, use `adamas train --data FILE` or adamas.tabular instead: they have settings "
            "of their own from trials on six tables (docs/tables.md), with rates up to 0.1 that fall to 0. "
            "The numbers above come from images and one table, at constant rates."
        )
    if batch_size >= LARGE_BATCH:
        found.append(
            f"memory: {batch_size} examples per step need not be in memory together. "
            "micro_batch_size=... processes fewer at once and does not change the result."
        )
    return found


def clip_norm() -> Choice:
    """Takes the clip norm that all trials have."""
    return Choice(
        CLIP_NORM,
        f"clip norm: {CLIP_NORM:g}. Thin evidence: our trials have no other one. Adaptive "
        "rules undo its scale; for sgd the rate must change with it.",
    )


def default_delta(n: int) -> float:
    """Returns 1/(10 n), rounded down to two digits.

    Example:
        >>> default_delta(60_000), default_delta(1000)
        (1.6e-06, 0.0001)
    """
    exact = Decimal(1) / (10 * n)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=ROUND_FLOOR))


def run_noise(request: Request, batch_size: int, epochs: int) -> RunNoise:
    """Returns the noise of a run that keeps the request's budget."""
    return noise_of(request.n, batch_size, epochs, request.epsilon, request.delta, request.accountant)
