"""Suggested settings of a run with their reasons, ready for `make_private`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adamas._words import limit
from adamas.rules import RULES
from adamas.rules.base import Params, Rule


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Suggested settings of a private run, with reasons.

    Attributes:
        n: Number of examples that it is for.
        parameters: Number of trainable parameters that it is for.
        rule: A name in `adamas.rules.RULES`.
        lr: The rule's learning rate.
        rule_options: Its other arguments that differ from their defaults.
        batch_size: Expected examples of a batch.
        clip_norm: Radius to which an example's gradient is clipped.
        epochs: Passes over the data.
        steps: Steps of the run.
        epsilon: The budget.
        delta: The delta of the budget.
        noise_multiplier: The noise that keeps the budget; `make_private` computes the same.
        accountant: The accountant of the budget.
        seconds: Expected time of the training; None if the speed is not known.
        reasons: Sentences with the numbers behind each choice.

    Example:
        >>> import adamas, torch
        >>> given = adamas.suggest(n=60_000, parameters=795_010, epsilon=3.0, epochs=5)
        >>> rule = given.make_rule(torch.nn.Linear(784, 10).parameters())
        >>> rule.param_groups[0]["lr"] == given.lr, sorted(given.options())
        (True, ['accountant', 'batch_size', 'clip_norm', 'delta', 'epochs', 'epsilon'])
    """

    n: int
    parameters: int
    rule: str
    lr: float
    rule_options: Mapping[str, Any]
    batch_size: int
    clip_norm: float
    epochs: int
    steps: int
    epsilon: float
    delta: float
    noise_multiplier: float
    accountant: str
    seconds: float | None
    reasons: tuple[str, ...]

    def make_rule(self, params: Params) -> Rule:
        """Builds the rule over `params`."""
        return RULES[self.rule](params, **{"lr": self.lr, **self.rule_options})

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `make_private` that the suggestion settles."""
        return {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "clip_norm": self.clip_norm,
            "accountant": self.accountant,
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as plain data."""
        return asdict(self) | {"reasons": list(self.reasons)}

    def snippet(self) -> str:
        """Returns the lines of Python that use the settings."""
        kind = RULES[self.rule].__name__
        rule = "".join(f", {name}={value!r}" for name, value in self.rule_options.items())
        given = [f"{name}={value!r}" for name, value in self.options().items() if name != "accountant"]
        if self.accountant != "pld":
            given.append(f"accountant={self.accountant!r}")
        return (
            f"rule = adamas.rules.{kind}(model.parameters(), lr={self.lr!r}{rule})\n"
            f"run = adamas.make_private(model, rule, dataset, loss, {', '.join(given)})"
        )

    def command(self, data: str = "DATA", model: str = "MODEL") -> str:
        """Returns the `adamas train` command that uses the settings.

        Args:
            data: A name in `adamas.data.DATASETS`.
            model: A name in `adamas.models.MODELS`.
        """
        words = f"adamas train --data {data} --model {model} --rule {self.rule} --lr {self.lr!r}"
        words += "".join(f" --set {name}={value!r}" for name, value in self.rule_options.items())
        for name, value in self.options().items():
            if (name, value) != ("accountant", "pld"):
                words += f" --{name.replace('_', '-')} {value if isinstance(value, str) else repr(value)}"
        return words

    def rows(self) -> list[list[str]]:
        """Returns name and value of each setting, as texts."""
        rule = "".join(f", {name} {value:g}" for name, value in self.rule_options.items())
        return [
            ["rule", self.rule + rule],
            ["lr", f"{self.lr:g}"],
            ["batch size", str(self.batch_size)],
            ["clip norm", f"{self.clip_norm:g}"],
            ["epochs", f"{self.epochs}, {self.steps} steps"],
            ["epsilon, delta", f"{limit(self.epsilon)}, {self.delta:g}"],
            ["noise multiplier", f"{self.noise_multiplier:g}"],
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"For {self.n:,} examples and {self.parameters:,} parameters:", ""]
        lines += [f"  {name:<{width}}  {value}" for name, value in rows]
        lines += ["", "Why:", ""]
        lines += [f"  {number}. {reason}" for number, reason in enumerate(self.reasons, 1)]
        return "\n".join(lines)
