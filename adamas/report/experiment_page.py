"""Builds the part of a page about a table of a paper: claim, privacy, numbers, figures, settings."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from adamas._words import duration
from adamas.report import experiment_plots as plots
from adamas.report import moments
from adamas.report.federated import partition_card
from adamas.report.numbers_table import numbers_legend, numbers_table
from adamas.report.outcome import Outcome, plural
from adamas.report.page import (
    Field,
    at,
    bullets,
    cards,
    data_table,
    definitions,
    details,
    epsilon_text,
    extent,
    heading,
    paragraph,
    plain,
    short,
    warning,
)
from adamas.report.plots import marker_legend
from adamas.report.privacy_words import privacy_statement, privacy_table
from adamas.reproduce.render import moment_statistics

_NEAR = 1.0  # points


def index(outcomes: Sequence[Outcome], level: int) -> str:
    """Lists the tables of a page, with their progress and their distance from the paper."""
    items = []
    for i, outcome in enumerate(outcomes):
        facts = _facts(outcome)
        words = "; ".join(f"{name.lower()}: {value}" for name, value in facts.items())
        items.append(
            f'<li><a href="#table{i}">{escape(outcome.table.title)}</a>'
            f"<span>{escape(outcome.table.source)}</span><span>{escape(words)}</span></li>"
        )
    listed = f'<ul class="index">{"".join(items)}</ul>'
    return f'<nav aria-label="Tables">{heading(level, "Tables")}{listed}</nav>'


def experiment_warnings(outcome: Outcome) -> Iterator[str]:
    """Returns a warning that names the rows with a run that is not private, if there are any."""
    rows = outcome.not_private()
    if rows:
        yield warning(
            f"{outcome.table.name}, {', '.join(map(outcome.row_title, rows))}",
            "Runs released values without noise: their ε is infinite.",
        )


def experiment_parts(outcome: Outcome, level: int, anchor: str) -> Iterator[str]:
    """Yields everything about a table. Its title is a heading of the given level."""
    table = outcome.table
    yield heading(level, table.title, anchor)
    yield f'<p class="muted">{escape(table.source)} · <code>adamas reproduce {escape(table.name)}</code></p>'
    yield paragraph(f"**Claim.** {table.claim}", "claim")
    yield definitions(_facts(outcome), "facts")
    if not outcome.lines:
        yield paragraph("No run is finished yet.")
    statement = privacy_statement(outcome.lines)
    if outcome.lines:
        yield heading(level + 1, "Privacy")
        yield paragraph(statement or "None of the runs is private.", "" if statement else "red")
        yield details("By column", privacy_table(outcome))
    yield heading(level + 1, "Numbers")
    yield paragraph(numbers_legend(outcome), "muted small")
    yield numbers_table(outcome)
    if table.findings:
        yield heading(level + 1, "What came out")
        yield from map(paragraph, table.findings)
    if outcome.lines:
        yield from _figures(outcome, level + 1)
        yield from _moments(outcome, level + 1)
    notes = [f"**{row.title}.** {row.note}" for row in table.rows.values() if row.note]
    if notes or table.notes:
        yield heading(level + 1, "Notes")
        yield bullets([*table.notes, *notes])
    yield heading(level + 1, "Settings")
    yield from _settings(outcome)
    if outcome.lines:
        yield heading(level + 1, "How it was made")
        yield definitions(_provenance(outcome))


def _facts(outcome: Outcome) -> dict[str, str]:
    facts = {"Finished runs": f"{len(outcome.lines)} of {outcome.total}"}
    if outcome.lines:
        facts["Seeds"] = f"{extent(outcome.seeds(), 'd')} of {outcome.table.seeds}"
    if outcome.pairs:
        near = sum(abs(pair.difference) <= _NEAR for pair in outcome.pairs)
        facts["Within 1 point of the paper"] = f"{near} of {plural(len(outcome.pairs), 'cell')}"
    if outcome.epsilons:
        facts["ε"] = epsilon_text(outcome.epsilons.values())
    return facts


# --- figures --------------------------------------------------------------------------------------------


def _figures(outcome: Outcome, level: int) -> Iterator[str]:
    published = any(row.published for row in outcome.table.rows.values())
    titles = [row.title for row in outcome.table.rows.values()]
    yield heading(level, "Figures")
    yield marker_legend(titles, published=published and outcome.along_epsilon())
    figures = [*plots.accuracy_figures(outcome), plots.scatter(outcome)]
    if "state" in outcome.table.measures:
        figures.append(plots.state_figure(outcome))
    yield cards(figures, large=True)
    yield heading(level, "Learning curves")
    yield paragraph(outcome.average("band"), "muted small")
    yield marker_legend(titles, published=False)
    drawn = {column: plots.learning_curves(outcome, column) for column in outcome.columns}
    ends = list(dict.fromkeys([outcome.columns[0], outcome.columns[-1]]))
    yield cards((drawn[column] for column in ends), large=True)
    others = [drawn[column] for column in outcome.columns if column not in ends]
    if others:
        yield details(f"The other columns ({len(others)})", cards(others, large=True))
    spreads = _partitions(outcome)
    if spreads:
        yield heading(level, "Which client has which classes")
        yield cards(spreads, large=True)


def _partitions(outcome: Outcome) -> list[str]:
    """Shows how the first seed's examples are spread over clients, once for each different spread."""
    drawn: dict[str, str] = {}
    for column in outcome.columns:
        lines = [line for line in outcome.lines if line["column"] == column and line.get("label_counts")]
        if lines:
            first = min(lines, key=lambda line: int(line["seed"]))
            title = f"{outcome.column_title(column)}, seed {first['seed']}"
            drawn.setdefault(str(first["label_counts"]), partition_card(first["label_counts"], title))
    return list(drawn.values())


def _moments(outcome: Outcome, level: int) -> Iterator[str]:
    """Shows statistics and histograms of the moments, in the first and the last column that have them."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for column in outcome.columns:
        for row in outcome.rows:
            kept = [line["moments"] for line in outcome.of(row, column) if at(line, "moments", "overall")]
            if kept:
                found.setdefault(column, []).append((outcome.row_title(row), kept[0]))
    if not found:
        return
    yield heading(level, "Moments of the optimizers")
    yield paragraph("After the last step of the first seed.", "muted small")
    for column in dict.fromkeys([next(iter(found)), list(found)[-1]]):
        yield heading(level + 1, outcome.column_title(column))
        yield _statistics(found[column], outcome.column_title(column))
        for name, line in found[column]:
            if at(line, "raw", "statistics"):
                head, *rows = moment_statistics(line)
                yield heading(level + 2, f"{name}: moments over all coordinates")
                yield data_table(
                    f"Moments of {name}",
                    [Field(head[0]), *(Field(text, "n") for text in head[1:])],
                    [[Field(escape(text)) for text in row] for row in rows],
                )
        yield from moments.histograms(found[column], level + 2)


def _statistics(lines: Sequence[tuple[str, dict[str, Any]]], column: str) -> str:
    heads = [Field("optimizer"), *(Field(escape(panel.short), "n") for panel in moments.PANELS)]
    rows = []
    for name, line in lines:
        fields = [Field(escape(name), name)]
        for panel in moments.PANELS:
            value = at(line, "overall", panel.key)
            value = at(value, "50%") if panel.key == "effective_lr" else value
            text = short(value)
            fields.append(Field(text, None if text == "–" else value))
        rows.append(fields)
    return data_table(f"Statistics of the moments, {column}", heads, rows, sortable=True)


# --- the rest -------------------------------------------------------------------------------------------


def _settings(outcome: Outcome) -> Iterator[str]:
    table = outcome.table
    yield details("Common to all runs", definitions({**table.settings, "seeds": table.seeds}), opened=True)
    for words, parts in (("By row", table.rows), ("By column", table.columns)):
        rows = [
            [Field(escape(one.title), one.title), Field(f"<code>{escape(_one_line(_changes(one)))}</code>")]
            for one in parts.values()
            if _changes(one)
        ]
        if rows:
            heads = [Field(words.removeprefix("By ")), Field("settings")]
            yield details(words, data_table(f"Settings {words.lower()}", heads, rows))


def _changes(one: Any) -> dict[str, Any]:
    """Returns the settings that a row or a column changes, the cells of a row included."""
    return {**one.settings, **{f"in {name}": dict(v) for name, v in getattr(one, "columns", {}).items()}}


def _one_line(values: Mapping[str, Any]) -> str:
    texts = []
    for name, value in values.items():
        inner = isinstance(value, Mapping)
        texts.append(f"{name}({_one_line(value)})" if inner else f"{name} = {plain(value)}")
    return ", ".join(texts)


def _provenance(outcome: Outcome) -> dict[str, str]:
    lines = outcome.lines
    seeds = sorted({line["seed"] for line in lines})
    seconds = sum(line["seconds"] for line in lines)
    each = extent([line["seconds"] for line in lines], ".0f")
    return {
        "runs": f"{len(lines)} of {outcome.total}",
        "seeds": ", ".join(map(str, seeds)),
        "time": f"{duration(seconds)} of one core in all, {each} s a run",
        "machine": "; ".join(sorted({line["machine"] for line in lines})),
        "version": "adamas " + ", ".join(sorted({line["version"] for line in lines})),
        "engine": ", ".join(sorted({str(line.get("engine", "–")) for line in lines})),
    }
