"""Draws figures of federated trainings: the classes of each client, and the accuracy over the rounds."""

from collections.abc import Sequence
from typing import Any

from adamas.report.page import card, number
from adamas.report.plots import GRID, axes, colour, svg

_MOST_CLIENTS = 60  # more bars cannot be told apart


def partition_card(counts: Sequence[Sequence[int]], title: str) -> str:
    """Draws how many examples of each class a client has: a bar per client, a colour per class."""
    shown = [[max(0, int(number(value))) for value in client] for client in counts[:_MOST_CLIENTS]]
    classes = max(map(len, shown))
    figure, ax = axes(6.4, 2.9)
    bottom = [0] * len(shown)
    for label in range(classes):
        values = [client[label] if label < len(client) else 0 for client in shown]
        ax.bar(range(len(shown)), values, bottom=bottom, width=0.85, color=colour(label))
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    ax.grid(False, axis="x")
    ax.axhline(0, color=GRID)
    ax.set_xlabel("client")
    ax.set_ylabel("examples")
    ax.xaxis.get_major_locator().set_params(integer=True)
    sizes = [sum(client) for client in counts]
    largest = [max(client) / max(sum(client), 1) for client in counts]
    words = (
        f"{len(counts)} clients with {min(sizes):,} to {max(sizes):,} examples; on average "
        f"{sum(largest) / len(largest):.0%} of a client's examples are of one class."
    )
    if len(counts) > len(shown):
        words += f" The first {len(shown)} are drawn."
    return card(title, f"{words} A colour for each class.", svg(figure, f"{title}: {words}"))


def rounds_card(rounds: Sequence[dict[str, Any]]) -> str:
    """Draws the test accuracy after each round; empty if it was not measured."""
    points = [(int(number(one["round"])), 100 * number(one["test_accuracy"])) for one in rounds if _has(one)]
    if not points:
        return ""
    figure, ax = axes(6.4, 2.9)
    places, values = zip(*points, strict=True)
    ax.plot(places, values, color=colour(0), marker="o", markersize=3.5, linewidth=1.5)
    ax.set_xlabel("round")
    ax.set_ylabel("test accuracy, %")
    ax.xaxis.get_major_locator().set_params(integer=True)
    left_out = sum(len(one.get("left_out") or {}) for one in rounds)
    words = f"From {values[0]:.1f}% to {values[-1]:.1f}% in round {places[-1]}."
    if left_out:
        words += f" Answers that were left out: {left_out}."
    return card(
        "Test accuracy over the rounds", words, svg(figure, f"Test accuracy over the rounds: {words}")
    )


def _has(one: dict[str, Any]) -> bool:
    return isinstance(one.get("test_accuracy"), float | int) and "round" in one
