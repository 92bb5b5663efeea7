"""Draws the plots of a table: accuracy against epsilon, learning curves, ours against published, state."""

import statistics
from collections.abc import Sequence
from typing import Any

from adamas._words import rounded_up
from adamas.report.outcome import Outcome, Pair
from adamas.report.page import card, epsilon_text, listing
from adamas.report.plots import GRID, INK, axes, colour, marker, svg, words_on
from adamas.reproduce.render import accuracy_name
from adamas.reproduce.results import Line

_LARGE = (5.4, 3.7)
_NAMED = 9  # in the sentence about a plot


def accuracy_figures(outcome: Outcome) -> list[str]:
    """Draws accuracy against epsilon if the columns differ in it, else a figure for each column."""
    if outcome.along_epsilon():
        rows = list(outcome.table.rows)
        crowded = _crowded(outcome)
        return [
            _along_epsilon(outcome, rows, "Accuracy against ε"),
            *([_along_epsilon(outcome, crowded, "The best of them, enlarged")] if crowded else []),
        ]
    return [_one_column(outcome, column) for column in outcome.columns]


def _crowded(outcome: Outcome) -> list[str]:
    """Picks the better rows, at least half, if they share a small part of the axis; else none."""
    means: dict[str, list[float]] = {}
    for (row, _), summary in outcome.summaries.items():
        means.setdefault(row, []).append(summary.mean)
    ranked = sorted(means, key=lambda row: -min(means[row]))
    everything = [mean for values in means.values() for mean in values]
    for count in range(len(ranked) - 1, max(len(ranked) // 2, 2) - 1, -1):
        shown = [mean for row in ranked[:count] for mean in means[row]]
        if max(shown) - min(shown) < 0.25 * (max(everything) - min(everything)):
            return [row for row in outcome.rows if row in ranked[:count]]
    return []


def _along_epsilon(outcome: Outcome, rows: Sequence[str], title: str) -> str:
    figure, ax = axes(*_LARGE)
    titles, spoken = {}, []
    for row in rows:
        i = outcome.places[row]
        published = outcome.table.rows[row].published
        dashed = sorted((outcome.epsilons[c], published[c][0]) for c in published if c in outcome.epsilons)
        if dashed:
            ax.plot(*zip(*dashed, strict=True), color=colour(i), linestyle=(0, (4, 2.5)), linewidth=1.0)
        points = sorted(
            (summary.epsilon["pld"], summary.mean, summary.deviation or 0.0)
            for (name, _), summary in outcome.summaries.items()
            if name == row and summary.private
        )
        if not points:
            continue
        x, y, deviations = zip(*points, strict=True)
        line = ax.errorbar(
            x, y, deviations if any(deviations) else None,
            color=colour(i), marker=marker(i), markersize=4.5, linewidth=1.6, capsize=2.5, elinewidth=1.0,
        )  # fmt: skip
        gid = f"row{i}"
        line[0].set_gid(gid)
        titles[gid] = outcome.row_title(row)
        spoken.append(
            f"{outcome.row_title(row)} {y[0]:.1f}% at ε = {rounded_up(x[0], 2)}, {y[-1]:.1f}% at "
            f"{rounded_up(x[-1], 2)}"
        )
    ax.set_xlabel("ε (PLD)")
    ax.set_ylabel(f"{accuracy_name(outcome.table)}, %")
    _round_ticks(ax.yaxis)
    _epsilon_ticks(ax, sorted(outcome.epsilons.values()))
    words = outcome.average("bars")
    if any(outcome.table.rows[row].published for row in rows):
        words += " Dashed: as published, at the ε computed here."
    said = f"{title}, {accuracy_name(outcome.table)} against ε: {listing(spoken, _NAMED)}."
    return card(title, words, svg(figure, said, titles))


def _round_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))


def _epsilon_ticks(ax: Any, values: Sequence[float]) -> None:
    """Puts ticks at the columns, except where they would touch."""
    low, high = values[0], values[-1]
    wide = high > 3 * low
    if wide:
        ax.set_xscale("log")
    kept: list[float] = []
    for value in values:
        far = value / kept[-1] > (high / low) ** 0.09 if wide and kept else True
        far = far if wide or not kept else value - kept[-1] > 0.09 * (high - low)
        if far:
            kept.append(value)
    words_on(ax.xaxis, kept, [rounded_up(value, 2) for value in kept])


def _one_column(outcome: Outcome, column: str) -> str:
    """Draws one row below the other: ours with its deviation, the published one as an empty marker."""
    rows = [
        name
        for name, row in outcome.table.rows.items()
        if (name, column) in outcome.summaries or column in row.published
    ]
    figure, ax = axes(_LARGE[0], max(1.0 + 0.27 * len(rows), 1.6))
    titles, spoken, with_published = {}, [], False
    for y, name in enumerate(rows):
        i, summary = outcome.places[name], outcome.summaries.get((name, column))
        published = outcome.table.rows[name].published.get(column)
        if published:
            with_published = True
            ax.plot([published[0]], [y], color=colour(i), marker=marker(i), markersize=7, fillstyle="none")
        if summary is None:
            continue
        drawn = ax.errorbar(
            [summary.mean], [y], xerr=summary.deviation,
            color=colour(i), marker=marker(i), markersize=4.5, capsize=2.5, linestyle="none",
        )  # fmt: skip
        drawn[0].set_gid(f"row{i}")
        titles[f"row{i}"] = f"{outcome.row_title(name)}: {summary}"
        spoken.append(f"{outcome.row_title(name)} {summary.mean:.1f}%")
    words_on(ax.yaxis, range(len(rows)), [outcome.row_title(name) for name in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(f"{accuracy_name(outcome.table)}, %")
    words = outcome.average("bars")
    words += " Empty markers: as published." if with_published else ""
    title = f"Accuracy, {outcome.column_title(column)}"
    return card(title, words, svg(figure, f"{title}: {listing(spoken, _NAMED)}.", titles))


def scatter(outcome: Outcome) -> str:
    """Draws our accuracy over the published one for each cell that the paper has, with the diagonal."""
    pairs = outcome.pairs
    if not pairs:
        return ""
    figure, ax = axes(*_LARGE)
    values = [value for pair in pairs for value in (pair.published, pair.ours)]
    margin = max(0.06 * (max(values) - min(values)), 0.5)
    low, high = min(values) - margin, max(values) + margin
    ax.plot([low, high], [low, high], color=INK, linewidth=0.9)
    titles = {}
    for k, pair in enumerate(pairs):
        i = outcome.places[pair.row]
        gid = f"point{k}"
        ax.plot(
            [pair.published], [pair.ours],
            color=colour(i), marker=marker(i), markersize=5.5, linestyle="none", alpha=0.85, gid=gid,
        )  # fmt: skip
        titles[gid] = f"{_name(outcome, pair)}: ours {pair.ours:.1f}, published {pair.published:g}"
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    _round_ticks(ax.xaxis)
    _round_ticks(ax.yaxis)
    ax.set_xlabel("published accuracy, %")
    ax.set_ylabel("ours, %")
    far = max(pairs, key=lambda pair: abs(pair.difference))
    middle = statistics.median(abs(pair.difference) for pair in pairs)
    words = (
        f"On the line: as published. Typical distance {middle:.1f} points; largest "
        f"{_signed(far.difference)}: {_name(outcome, far)}."
    )
    said = f"Our accuracy against the published one, in {len(pairs)} cells. {words}"
    return card("Ours against the published", words, svg(figure, said, titles))


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _name(outcome: Outcome, pair: Pair) -> str:
    return f"{outcome.row_title(pair.row)}, {outcome.column_title(pair.column)}"


def learning_curves(outcome: Outcome, column: str) -> str:
    """Draws accuracy over the steps, or rounds, of a column's runs, one curve for each row."""
    figure, ax = axes(_LARGE[0], 3.2)
    spoken = []
    for row in outcome.rows:
        points = mean_curve(outcome.of(row, column))
        if not points:
            continue
        i = outcome.places[row]
        steps, means, deviations = zip(*points, strict=True)
        ax.plot(steps, means, color=colour(i), marker=marker(i), markersize=3.5, linewidth=1.5)
        if any(deviations):
            low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            ax.fill_between(steps, low, high, color=colour(i), alpha=0.16, linewidth=0)
        spoken.append(f"{outcome.row_title(row)} {means[0]:.1f}% to {means[-1]:.1f}%")
    ax.set_xlabel("round" if outcome.table.federated else "step")
    ax.set_ylabel(f"{accuracy_name(outcome.table)}, %")
    _round_ticks(ax.yaxis)
    epsilon = outcome.epsilons.get(column)
    words = "" if epsilon is None else f"ε = {epsilon_text([epsilon])} at the end."
    title = outcome.column_title(column)
    said = f"Learning curves, {title}: {listing(spoken, _NAMED)}."
    return card(title, words, svg(figure, said))


def mean_curve(lines: Sequence[Line]) -> list[tuple[int, float, float]]:
    """Returns step, mean accuracy and deviation in percent, at the steps that all runs share."""
    curves = [{int(step): 100 * float(value) for step, value in line["curve"]} for line in lines]
    shared = set(curves[0]).intersection(*curves[1:]) if curves else set()
    points = []
    for step in sorted(shared):
        values = [curve[step] for curve in curves]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        points.append((step, statistics.fmean(values), deviation))
    return points


def state_figure(outcome: Outcome) -> str:
    """Draws the bytes of optimizer state per parameter, a bar for each row."""
    sizes = {row: state_of(outcome, row) for row in outcome.rows}
    known = {row: size for row, size in sizes.items() if size is not None}
    if not known:
        return ""
    figure, ax = axes(_LARGE[0], max(1.0 + 0.27 * len(known), 1.6))
    for y, (row, size) in enumerate(known.items()):
        ax.barh(y, size, height=0.62, color=colour(outcome.places[row]))
        ax.annotate(
            f"{size:.2f}", (size, y), (4, 0), textcoords="offset points", va="center", color=INK, fontsize=9
        )
    words_on(ax.yaxis, range(len(known)), [outcome.row_title(row) for row in known])
    ax.set_ylim(len(known) - 0.5, -0.5)
    ax.set_xlim(0, max(*known.values(), 1.0) * 1.12)
    ax.grid(False, axis="y")
    ax.axvline(0, color=GRID)
    ax.set_xlabel("bytes per parameter")
    spoken = [f"{outcome.row_title(row)} {size:.2f}" for row, size in known.items()]
    said = f"Bytes of optimizer state for each parameter: {listing(spoken, 2 * _NAMED)}."
    return card("Optimizer state", "Bytes for each parameter; Adam in float32 has 8.", svg(figure, said))


def state_of(outcome: Outcome, row: str) -> float | None:
    """Returns the bytes of state per parameter, the largest of a row's runs."""
    found = [line.get("state_bytes_per_parameter") for line in outcome.lines if line["row"] == row]
    return max((float(size) for size in found if size is not None), default=None)
