"""Draws what an optimizer did: the values of `run.diagnostics()` over time, and its histograms."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adamas.report.page import at, card, cards, heading, listing, number, short
from adamas.report.plots import DASHES, INK, SERIES, axes, colour, legend, svg

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Panel:
    """A curve over the steps: the name of a value in the diagnostics, and how it is drawn."""

    key: str
    title: str
    short: str
    label: str
    words: str
    log: bool = False
    reference: float | None = None


PANELS = [
    Panel(
        "on_floor",
        "On the floor",
        "on the floor",
        "share of coordinates",
        "Coordinates whose second moment, less the noise, is at or below the floor: they step like SGD.",
    ),
    Panel(
        "noise_share",
        "Noise in the second moment",
        "noise share",
        "Φ / v̂",
        "1: the second moment is noise, and an uncorrected rule is not adaptive.",
        reference=1.0,
    ),
    Panel(
        "signal_to_noise",
        "Signal to noise of the first moment",
        "signal to noise",
        "|m̂|² / expected noise",
        "1 is what noise alone gives; the excess over 1 is signal.",
        log=True,
        reference=1.0,
    ),
    Panel(
        "effective_lr",
        "Effective learning rate",
        "median learning rate",
        "lr / denominator",
        "Median over the coordinates; the band holds 90% of them.",
        log=True,
    ),
    Panel(
        "update_rms",
        "Size of the update",
        "update",
        "root mean square",
        "Of a coordinate, per step.",
        log=True,
    ),
    Panel(
        "center_norm",
        "Center of clipping",
        "center",
        "whitened norm (clip radii)",
        "0 without a center. Far above 1 with a signal to noise near 1, the center is noise and clips all.",
        reference=1.0,
    ),
]

_MOMENTS = [("v_hat", "private"), ("v_corrected", "less the noise variance"), ("raw", "WITHOUT NOISE")]
_UPDATES = [
    ("update_uncorrected", "m̂ / √v̂"),
    ("update", "m̂ / denominator, as made"),
    ("raw", "WITHOUT NOISE"),
]
_NAMED = 6  # in the sentence about a plot


# --- over time ------------------------------------------------------------------------------------------


def curves(series: Sequence[tuple[str, Lines, tuple[str, ...]]]) -> str:
    """Draws the panels that have a value in any series: a name, the lines of a run, and a place in them."""
    figures = []
    for panel in PANELS:
        drawn = []
        for _, lines, place in series:
            values = [at(line, *place, panel.key) for line in lines]
            steps = [number(line.get("step")) for line in lines]
            if panel.key == "effective_lr":
                drawn.append((steps, *([number(at(v, q)) for v in values] for q in ("50%", "5%", "95%"))))
            else:
                drawn.append((steps, [number(v) for v in values], [], []))
        if any(not math.isnan(y) for _, ys, _, _ in drawn for y in ys):
            names = [name for name, _, _ in series]
            figures.append(card(panel.title, panel.words, _curve_plot(panel, names, drawn)))
    return cards(figures) or "<p>The rule has no moments to show.</p>"


def _curve_plot(panel: Panel, names: list[str], drawn: list[tuple[list[float], ...]]) -> str:
    figure, ax = axes()
    for i, (steps, middle, low, high) in enumerate(drawn):
        one = len(steps) == 1
        ax.plot(
            steps, middle, color=colour(i), linestyle=DASHES[i % len(DASHES)], marker="o" if one else None
        )
        if low and len(drawn) <= 4:
            ax.fill_between(steps, low, high, color=colour(i), alpha=0.18, linewidth=0)
    if panel.reference is not None:
        ax.axhline(panel.reference, color=INK, linewidth=0.8, linestyle="dashed")
    values = [y for _, *parts in drawn for ys in parts for y in ys if not math.isnan(y)]
    if panel.log and min(values) > 0 and max(values) / min(values) >= 10:
        ax.set_yscale("log")
    elif not panel.log:
        ax.set_ylim(bottom=0)
    if panel.key == "on_floor":
        from matplotlib.ticker import PercentFormatter

        ax.set_ylim(0, 1.02)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("step")
    ax.set_ylabel(panel.label)
    last = [
        f"{name} {short(middle[-1])}"
        for name, (_, middle, _, _) in zip(names, drawn, strict=True)
        if middle and not math.isnan(middle[-1])
    ]
    return svg(figure, f"{panel.title}, {panel.label}, over the steps. Last: {listing(last, _NAMED)}.")


# --- after the last step --------------------------------------------------------------------------------


def histograms(lines: Sequence[tuple[str, dict[str, Any]]], level: int) -> Iterator[str]:
    """Draws second moments and updates of some named lines, a card for each on the same axis."""
    last = [(name, line) for name, line in lines if at(line, "histograms")]
    for title, kinds, raw, label, marks in (
        ("Second moment", _MOMENTS, "v_hat", "second moment of a coordinate", ("noise_variance", "floor")),
        ("Updates", _UPDATES, "update", "|update| of a coordinate / learning rate", ()),
    ):
        drawn = []
        for name, line in last:
            found = [at(line, "histograms", key) for key, _ in kinds[:2]]
            found.append(at(line, "raw", "histograms", raw))
            drawn.append((name, found, [number(at(line, "histograms", key)) for key in marks]))
        ends = [end for _, found, _ in drawn for one in found for end in _ends(one)]
        if not ends:
            continue
        with_raw = any(found[2] for _, found, _ in drawn)
        remark = " Vertical lines: noise variance (dashed), floor (dotted)." if marks else ""
        shown = [words for _, words in kinds[: 2 + with_raw]]
        yield heading(level, f"{title} after the last step") + legend(shown)
        yield cards(
            card(name, _remark(found) + remark, _histogram_plot(name, shown, found, verticals, ends, label))
            for name, found, verticals in drawn
            if any(map(_ends, found))
        )


def _remark(found: list[Any]) -> str:
    parts = found[1] or {}
    total = _total(parts)
    if not parts.get("not_positive") or not total:
        return ""
    return f"{parts['not_positive'] / total:.1%} of the corrected values are 0 or negative and not shown."


def _total(one: dict[str, Any]) -> int:
    return int(sum(one.get("counts", [])) + one.get("below", 0) + one.get("not_positive", 0))


def _ends(one: Any) -> list[float]:
    if not at(one, "counts"):
        return []
    return [one["edge"], one["edge"] + one["width"] * len(one["counts"])]


def _histogram_plot(
    name: str, kinds: list[str], found: list[Any], verticals: list[float], ends: list[float], label: str
) -> str:
    figure, ax = axes()
    peaks = []
    for i, one in enumerate(found):
        if not _ends(one):
            continue
        shares = [count / _total(one) for count in one["counts"]]
        edges = [10 ** (one["edge"] + one["width"] * k) for k in range(len(shares) + 1)]
        ax.stairs(shares, edges, color=SERIES[i], fill=True, alpha=0.25)
        ax.stairs(shares, edges, color=SERIES[i], linewidth=1.4)
        peaks.append(f"{kinds[i]} near {edges[shares.index(max(shares))]:.2g}")
    for x, style in zip(verticals, ("dashed", "dotted"), strict=False):
        if x > 0:
            ax.axvline(x, color=INK, linewidth=1.0, linestyle=style)
    ax.set_xscale("log")
    ax.set_xlim(10 ** (min(ends) - 0.1), 10 ** (max(ends) + 0.1))
    ax.set_ylim(bottom=0)
    ax.set_xlabel(label)
    ax.set_ylabel("share of coordinates per bin")
    return svg(figure, f"{name}: histogram of the {label}. Most frequent: {', '.join(peaks)}.")
