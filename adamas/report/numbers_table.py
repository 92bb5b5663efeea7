"""Builds a sortable table of numbers: ours above the published ones."""

from collections.abc import Sequence
from html import escape

from adamas._words import rounded_up
from adamas.report.experiment_plots import state_of
from adamas.report.outcome import Outcome, plural
from adamas.report.page import Field, data_table, extent
from adamas.reproduce.render import Summary, accuracy_name, decimals, value_text

_FORMS = {"corrected": "corrected", "ours": "not in the paper"}


def numbers_legend(outcome: Outcome) -> str:
    """Explains how to read the numbers."""
    words = f"{accuracy_name(outcome.table).capitalize()} in percent"
    if outcome.seeds() == [1]:
        words += f", one of {plural(outcome.table.seeds, 'seed')}"
    elif outcome.lines:
        words += (
            f": mean ± standard deviation of {extent(outcome.seeds(), 'd')} of {outcome.table.seeds} seeds"
        )
    if any(row.published for row in outcome.table.rows.values()):
        words += "; below it, in grey, what the paper has"
    return words + ". Bold: the best of its column."


def numbers_table(outcome: Outcome) -> str:
    """Builds the table: mean and deviation of each cell, with the published ones below."""
    table = outcome.table
    with_state = "state" in table.measures
    heads = [Field("optimizer" if _are_rules(outcome) else "row")]
    for column in table.columns:
        epsilon = outcome.epsilons.get(column)
        spent = "" if epsilon is None else f"<small>ε = {rounded_up(epsilon, 2)}</small>"
        heads.append(Field(escape(outcome.column_title(column)) + spent, "n"))
    if with_state:
        heads.append(Field("state<small>bytes per parameter</small>", "n"))
    digits = decimals(table)
    best = {
        column: (
            max(
                (s.mean for (_, c), s in outcome.summaries.items() if c == column and s.private), default=None
            ),
            max((r.published[column][0] for r in table.rows.values() if column in r.published), default=None),
        )
        for column in table.columns
    }
    counts = outcome.seeds()
    rows = []
    for name, row in table.rows.items():
        form = _FORMS.get(row.form, "")
        tag = "" if form in row.title else f' <span class="tag">{form}</span>'
        fields = [Field(escape(row.title) + tag, row.title)]
        for column in table.columns:
            summary, published = outcome.summaries.get((name, column)), row.published.get(column)
            html = _cell(summary, published, best[column], digits, len(counts) > 1)
            fields.append(Field(html, None if summary is None else round(summary.mean, 6)))
        if with_state:
            size = state_of(outcome, name)
            fields.append(Field("–" if size is None else f"{size:.2f}", size))
        rows.append(fields)
    return data_table(f"Numbers of {table.name}", heads, rows, sortable=True)


def _are_rules(outcome: Outcome) -> bool:
    return len({row.settings.get("rule") for row in outcome.table.rows.values()}) > 1


def _cell(
    summary: Summary | None,
    published: Sequence[float] | None,
    best: tuple[float | None, float | None],
    digits: int,
    count: bool,
) -> str:
    html = "–"
    if summary is not None:
        html = _value(summary.mean, summary.deviation, best[0], digits)
        html += "" if summary.private else ' <span class="tag red">NOT PRIVATE</span>'
    if published is not None:
        deviation = published[1] if len(published) > 1 else None
        text = _value(published[0], deviation, best[1], digits)
        html += f'<small><span class="unseen">published </span>{text}</small>'
    if summary is not None and count:
        html += f"<small>{plural(summary.runs, 'seed')}</small>"
    return html


def _value(mean: float, deviation: float | None, best: float | None, digits: int) -> str:
    text = value_text(mean, deviation, digits)
    first, *rest = text.split(" ", 1)
    if best is not None and first == value_text(best, None, digits):
        first = f'<b class="best">{first}</b>'
    return " ".join([first, *rest])
