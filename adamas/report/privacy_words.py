"""States the guarantee of the runs of a table, in words and by column."""

from collections.abc import Sequence
from html import escape

from adamas._words import rounded_up
from adamas.report.outcome import Outcome, values_of
from adamas.report.page import Field, data_table, epsilon_text, extent
from adamas.reproduce.results import Line

# Sampling -> what neighbouring data sets differ in, and how a batch is drawn.
_SAMPLING = {
    "poisson": ("adding or removing one record", "Poisson sampling"),
    "truncated-poisson": ("adding or removing one record", "truncated Poisson sampling"),
    "shuffled": ("replacing one record by one without influence", "shuffled batches"),
}


def privacy_statement(lines: Sequence[Line]) -> str:
    """States the guarantee of the private runs among some; empty if there are none."""
    private = [line for line in lines if line["private"]]
    if not private:
        return ""
    kinds = dict.fromkeys((_sampling(line), line["delta"]) for line in private)
    guarantees = [
        _guarantee([line for line in private if (_sampling(line), line["delta"]) == kind]) for kind in kinds
    ]
    together = (
        f" This holds for each run by itself: the {len(private):,} runs together spend more, and so does a "
        "choice of settings by their results."
        if len(private) > 1
        else ""
    )
    return (
        " ".join(guarantees)
        + together
        + " The seeds are public here, and whoever knows a seed can remove the "
        "noise: train with a secret one where records need protection."
    )


def _sampling(line: Line) -> str:
    return str(line["settings"].get("sampling", "poisson"))


def _guarantee(lines: Sequence[Line]) -> str:
    relation, drawn = _SAMPLING.get(_sampling(lines[0]), ("one record", _sampling(lines[0]) + " sampling"))
    sizes = {
        f"{line['settings']['batch_size']:,} of {line['settings']['batch_size'] / line['sampling_rate']:,.0f}"
        for line in lines
    }
    where = " or ".join(sorted(sizes)) if len(sizes) <= 3 else f"{len(sizes)} different sizes"
    tight, loose = ([line["epsilon"][name] for line in lines] for name in ("pld", "rdp"))
    delta, steps = extent(values_of(lines, "delta")), extent(values_of(lines, "steps"), ",")
    by_rdp = "" if None in loose else f" By RDP, which is less tight, ε = {epsilon_text(loose)}."
    noise = extent(values_of(lines, "noise_multiplier"), ".3g")
    whose = (
        " of the client with the fewest, if it takes part in all rounds"
        if any("clients" in line["settings"] for line in lines)
        else ""
    )
    return (
        "A record's influence on a run is bounded by (ε, δ)-differential privacy with "
        f"ε = {epsilon_text(tight)} and δ = {delta} under {relation}{whose}: {drawn} of {where} records on "
        f"average, {steps} steps, noise multiplier {noise}, accountant PLD.{by_rdp}"
    )


def privacy_table(outcome: Outcome) -> str:
    """Builds a table of what each column spends, by both accountants and as published."""
    published = any(column.published_epsilon for column in outcome.table.columns.values())
    names = ["noise multiplier", "sampling rate", "steps", "δ", "ε by PLD", "ε by RDP"]
    names += ["ε, published"] * published
    rows = []
    for name, column in outcome.table.columns.items():
        lines = [line for line in outcome.lines if line["column"] == name]
        private = [line for line in lines if line["private"]]
        texts = [
            extent(values_of(lines, key), form) if lines else "–"
            for key, form in (
                ("noise_multiplier", ".4g"), ("sampling_rate", ".4g"), ("steps", ","), ("delta", "g")
            )
        ]  # fmt: skip
        for accountant in ("pld", "rdp"):
            spent = [line["epsilon"][accountant] for line in private]
            texts.append(epsilon_text(spent, 3))
        if len(private) < len(lines):
            texts[-2:] = [
                '<b class="red">∞, NOT PRIVATE</b>' if not private else f"{texts[-2]}, ∞",
                texts[-1],
            ]
        if published:
            texts.append("–" if column.published_epsilon is None else rounded_up(column.published_epsilon, 2))
        rows.append([Field(escape(column.title)), *(Field(text) for text in texts)])
    heads = [Field("column"), *(Field(escape(name), "n") for name in names)]
    return data_table("What each column spends", heads, rows)
