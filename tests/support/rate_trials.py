"""Reads the stored trials of learning rates, and computes how far a rate is behind the best one."""

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from adamas.suggestions.noise import RunNoise

ROOT = Path(__file__).parents[2]
TRIALS, CIFAR, HELD_OUT = "rates/trials", "adamw/table1-trials", "rates/held-out"


@dataclass(frozen=True)
class Setting:
    """A column of the trials: its task, its noise, and accuracies in percent by rule and rate."""

    task: str
    noise: RunNoise
    parameters: int
    epochs: int
    accuracies: dict[str, dict[float, float]]

    def best(self, rule: str) -> float:
        return max(self.accuracies[rule].values())

    def best_of_all(self) -> float:
        return max(map(self.best, self.accuracies))


def lines(experiment: str) -> list[dict]:
    text = (ROOT / "experiments" / experiment / "results.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def name_of(settings: dict) -> str:
    return "sgd with momentum 0.9" if settings["rule_options"].get("momentum") else settings["rule"]


@cache
def trials() -> dict[str, Setting]:
    """Returns the trials by column; the one on CIFAR-10 was made for another table."""
    found: dict[str, Setting] = {}
    for experiment in (TRIALS, CIFAR):
        for line in lines(experiment):
            column = "cifar" if experiment == CIFAR else line["column"]
            settings = line["settings"]
            setting = found.setdefault(
                column,
                Setting(
                    task=column.split("-eps")[0],
                    noise=RunNoise(settings["batch_size"], line["steps"], line["noise_multiplier"]),
                    parameters=line["parameters"],
                    epochs=settings["epochs"],
                    accuracies=defaultdict(dict),
                ),
            )
            rate = settings["rule_options"]["lr"]
            setting.accuracies[name_of(settings)][rate] = 100 * line["test_accuracy"]
    return found


def accuracy_at(accuracies: dict[float, float], rate: float) -> float:
    """Returns the accuracy at a rate: between two rates that were tried, on a line over the logarithm."""
    rates = sorted(accuracies)
    rate = min(max(rate, rates[0]), rates[-1])
    for low, high in itertools.pairwise(rates):
        if low <= rate <= high:
            share = math.log(rate / low) / math.log(high / low)
            return (1 - share) * accuracies[low] + share * accuracies[high]
    return accuracies[rate]


def lost(
    rule: str, rate: Callable[[Setting], float], *, of_all: bool = False, without: str | None = None
) -> float:
    """Returns the points that a rate is behind the best one of the rule, or of all; mean over tasks.

    Args:
        rule: The rule.
        rate: The rate for a setting.
        of_all: Compare with the best of all rules.
        without: A task that is left out.
    """
    behind: dict[str, list[float]] = defaultdict(list)
    for setting in trials().values():
        if rule in setting.accuracies and setting.task != without:
            best = setting.best_of_all() if of_all else setting.best(rule)
            behind[setting.task].append(best - accuracy_at(setting.accuracies[rule], rate(setting)))
    return statistics.fmean(statistics.fmean(values) for values in behind.values())


def rates(rule: str) -> list[float]:
    """Returns the rates of a rule that were tried in the table of trials."""
    return sorted(
        {
            rate
            for column, setting in trials().items()
            if column != "cifar"
            for rate in setting.accuracies.get(rule, {})
        }
    )


def constant(rule: str, without: str | None = None) -> dict[float, float]:
    """Returns what each constant rate loses; a task may be left out."""
    return {rate: lost(rule, lambda _, rate=rate: rate, without=without) for rate in rates(rule)}


TIE = 1.0
"""Points that are within the noise of one seed: among rates this close to the best, the smallest is taken."""


def winner(rule: str, without: str | None = None) -> float:
    """Returns the rate with the least loss; of those that lose less than a point more, the smallest."""
    losses = constant(rule, without)
    return min(rate for rate, value in losses.items() if value <= min(losses.values()) + TIE)


def tasks(rule: str) -> list[str]:
    """Returns the tasks that a rule was tried on."""
    return sorted({setting.task for setting in trials().values() if rule in setting.accuracies})


def careful_winner(rule: str) -> float:
    """Returns the smallest of the winners that come out when each task in turn is left out."""
    return min(winner(rule, without) for without in [None, *tasks(rule)])


def left_out(rule: str, candidates: list[Callable[[Setting], float]]) -> float:
    """Returns what the best of some rates loses on a task that did not choose it; mean over tasks."""
    behind = []
    for task in tasks(rule):
        losses = [lost(rule, rate, without=task) for rate in candidates]
        chosen = candidates[losses.index(min(losses))]
        settings = [one for one in trials().values() if one.task == task and rule in one.accuracies]
        behind.append(
            statistics.fmean(
                one.best(rule) - accuracy_at(one.accuracies[rule], chosen(one)) for one in settings
            )
        )
    return statistics.fmean(behind)
