"""Explains why a model is fast, slow or refused: the use, norm formula and cost of each parameter."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The cost of one parameter in a private step.

    Attributes:
        parameter: Its name.
        shape: Its shape.
        function: The function, or functions, in which it meets data; "" if it has no use.
        formula: How the norms of its per-example gradients are taken.
        seconds: Time for its norms and its weighted sum.
        size: Bytes that are held for it from the backward to the sum; what several parameters share is
            counted for the first.
        retaken: Examples whose gradient is computed in float64, because its terms nearly cancel.
    """

    parameter: str
    shape: tuple[int, ...]
    function: str
    formula: str
    seconds: float
    size: int
    retaken: int = 0


@dataclass(frozen=True)
class Explanation:
    """The costs of a step without its noise and update; `print` shows them as a table.

    Attributes:
        engine: The engine that computes the step.
        refusal: Why the fast engine does not, if it does not.
        examples: Number of examples that were tried.
        rest: Seconds of the model's forward and backward, which a step without privacy needs as well.
        costs: One entry for each trainable parameter; none if the fast engine refuses the model.
    """

    engine: str
    refusal: str | None
    examples: int
    rest: float
    costs: Sequence[Cost]

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"engine {self.engine}, because the fast engine refuses the model:\n{self.refusal}"
        total = self.rest + sum(cost.seconds for cost in self.costs)
        held = max(1, sum(cost.size for cost in self.costs))
        head = ("parameter", "shape", "function", "norm", "time", "memory")
        lines = [
            (
                cost.parameter,
                "x".join(map(str, cost.shape)),
                cost.function or "unused",
                cost.formula
                + (f", {cost.retaken / max(1, self.examples):.0%} in float64" if cost.retaken else ""),
                f"{cost.seconds / total:.1%}",
                f"{cost.size / held:.1%}",
            )
            for cost in self.costs
        ]
        lines.append(("forward and backward", "", "", "", f"{self.rest / total:.1%}", ""))
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        table = [
            "  ".join(
                cell.rjust(width) if i > 3 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in [head, *lines]
        ]
        summary = (
            f"engine bookkeeping, {self.examples} examples: {1000 * total:.1f} ms, "
            f"{held / 2**20:.1f} MB held for the sum"
        )
        if self.engine != "bookkeeping":
            summary = f"the run uses engine {self.engine}; with {summary}"
        return "\n".join([summary, *table])
