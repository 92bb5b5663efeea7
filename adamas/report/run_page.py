"""Builds the part of a page about single runs: the guarantee, the outcome, what the rule did."""

import math
from collections.abc import Iterator
from html import escape
from typing import Any

from adamas._words import rounded_up
from adamas.report import moments
from adamas.report.federated import partition_card, rounds_card
from adamas.report.page import (
    Field,
    at,
    cards,
    data_table,
    definitions,
    details,
    heading,
    number,
    paragraph,
    short,
    warning,
)
from adamas.report.plots import MOST_SERIES, legend
from adamas.report.runs import Run


def run_warnings(runs: list[Run]) -> Iterator[str]:
    """Returns a warning for each run that is not private."""
    for run in runs:
        if not run.private():
            yield warning(run.name, str(run.result.get("privacy", "Its files hold a release without noise.")))


def run_parts(runs: list[Run], level: int) -> Iterator[str]:
    """Yields everything about some runs, with curves in shared plots. Headings start at the given level."""
    yield _table(runs)
    if any(run.lines for run in runs):
        yield heading(level, "Over time, all parameters") + legend(run.name for run in runs)
        yield moments.curves([(run.name, run.lines, ("overall",)) for run in runs])
        yield from moments.histograms([(run.name, run.lines[-1]) for run in runs if run.lines], level)
    for run in runs:
        yield from _section(run, level)


def _table(runs: list[Run]) -> str:
    heads = [Field(name) for name in ("run", "rule", "data", "model")]
    heads += [Field(name, "n") for name in ("ε", "δ", "noise multiplier", "steps", "test accuracy", "state")]
    rows = []
    for run in runs:
        result, last = run.result, run.lines[-1] if run.lines else {}
        texts = [
            escape(run.name),
            *(
                escape(_named(result, *keys))
                for keys in (("rule", "algorithm"), ("data", "task"), ("model",))
            ),
            _spent(result.get("epsilon")) if run.private() else '<b class="red">∞, NOT PRIVATE</b>',
            short(result.get("delta")),
            short(result.get("noise_multiplier")),
            short(result.get("steps", last.get("step"))),
            "–" if result.get("test_accuracy") is None else f"{number(result['test_accuracy']):.2%}",
            short(at(last, "overall", "state_bytes_per_parameter"), " bytes per parameter"),
        ]
        rows.append([Field(text) for text in texts])
    return data_table("The runs and their results", heads, rows)


def _spent(epsilon: Any) -> str:
    """Formats what a run has spent, rounded up; a dash if it is not known."""
    known = number(epsilon)
    return "–" if math.isnan(known) else rounded_up(known)


def _named(result: dict[str, Any], *keys: str) -> str:
    """Returns the first of some settings that a run has."""
    return str(next(filter(None, (at(result, "settings", key) for key in keys)), "–"))


def _section(run: Run, level: int) -> Iterator[str]:
    yield heading(level, run.name)
    yield f'<p class="{"" if run.private() else "red"}">{escape(_statement(run))}</p>'
    scores = at(run.result, "test_scores")
    if isinstance(scores, dict) and scores:
        formatted = {str(name).replace("_", " "): short(value) for name, value in scores.items()}
        yield details("Scores of the test rows, without noise", definitions(formatted), opened=True)
    settings = at(run.result, "settings") or {}
    shown = {key: value for key, value in settings.items() if value not in (None, {}, False)}
    if shown:
        yield details("Settings", definitions(shown), opened=True)
    entries = [*(at(run.ledger, "entries") or []), *filter(None, [at(run.ledger, "open")])]
    if entries:
        listed = "".join(
            f"<li>{escape(str(at(entry, 'count') or 1))} × {escape(_event(at(entry, 'event')))}</li>"
            for entry in entries
        )
        yield details("Ledger: what was released", f"<ul>{listed}</ul>", opened=True)
    federated = [rounds_card(run.rounds)] if run.rounds else []
    if counts := at(run.result, "label_counts"):
        federated.append(partition_card(counts, "Examples of each client"))
    if federated:
        yield cards(federated, large=True)
    if not run.lines:
        if not federated:
            yield paragraph("Trained without --diagnose, so there is nothing to draw.")
        return
    layers = at(run.lines[-1], "layers") or {}
    largest = sorted(layers, key=lambda name: -number(at(layers, name, "coordinates")))[:MOST_SERIES]
    shown_layers = [name for name in layers if name in largest]
    cut = len(shown_layers) < len(layers)
    left_out = f" ({len(shown_layers)} largest of {len(layers)} parameters)" if cut else ""
    yield heading(level + 1, f"By layer{left_out}") + legend(shown_layers)
    yield moments.curves([(name, run.lines, ("layers", name)) for name in shown_layers])


def _statement(run: Run) -> str:
    if not run.result:
        return "The run did not finish: there is no result.json, so what it spent is not known here."
    words = [str(run.result.get("privacy", "")), str(run.result.get("note", ""))]
    return " ".join(dict.fromkeys(words)) if words[1] not in words[0] else words[0]


def _event(event: Any) -> str:
    """Formats an event of the ledger in one line."""
    if isinstance(event, dict):
        fields = ", ".join(f"{key}={_event(value)}" for key, value in event.items() if key != "kind")
        return f"{str(event.get('kind')).removesuffix('DpEvent')}({fields})"
    return f"[{', '.join(map(_event, event))}]" if isinstance(event, list) else str(event)
