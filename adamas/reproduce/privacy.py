"""Computes privacy numbers that papers print, and shows both side by side.

`experiments/privacy/published.toml` lists them: the number, its settings, and the convention that reproduces
it. `published_numbers` computes each by that convention and by the tight accountant, PLD.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import dp_accounting
from scipy.optimize import brentq

from adamas._words import limit, rounded_up
from adamas.accounting import calibrate, composition
from adamas.reproduce import graph_accounting
from adamas.reproduce.privacy_entries import CONVENTIONS, Entry, read_entries

TITLE = "Published privacy numbers against computed ones"
"""The title of the table."""

_HEAD = ["Paper", "Place", "Run", "Quantity", "Published", "Reproduced", "by", "Agrees", "Tight (PLD)"]
_HEAD += ["ε of the published run (PLD)", "Remark"]

_NOISE_TICK = 1e-4  # `calibrate` rounds noise multipliers up to it
_TIGHT_TICK = {"steps": 1.0, "noise_multiplier": 1e-3}


@dataclass(frozen=True)
class Row:
    """A published number, and the same number as computed here.

    Attributes:
        paper: Authors and year.
        place: Table or section.
        quantity: "epsilon", "steps" or "noise_multiplier".
        settings: The run, in words.
        published: The number with its printed digits; None where the paper does not print it.
        recorded: Where `published` is None, the number that follows from what the paper does print and from
            assumptions that the remark names.
        fitted: Settings that the paper does not print and that were chosen so that the number comes out.
        convention: The accountant that reproduces the number, in words.
        reproduced: The number by this convention; None if a package is missing.
        tight: The number by PLD: the epsilon of the same settings, or the most steps or the least noise
            within the same budget. The last two keep the budget, and may be a unit from the best one.
            None if it was not asked for.
        spent: The epsilon by PLD of a run with the published steps or noise; None where the paper prints
            neither, or `tight` was not asked for.
        agrees: Whether `reproduced` is the published or recorded number, to the printed digits or within
            the tolerance of the entry; None if there is no `reproduced`.
        missing: What must be installed, if there is no `reproduced`.
        remark: Assumptions that the paper does not state, and why a tolerance was needed.
    """

    paper: str
    place: str
    quantity: str
    settings: str
    published: Decimal | None
    recorded: Decimal | None
    fitted: str
    convention: str
    reproduced: float | None
    tight: float | None
    spent: float | None
    agrees: bool | None
    missing: str
    remark: str


def published_numbers(source: Path | str, *, tight: bool = True) -> list[Row]:
    """Computes every number of a TOML file.

    The whole of `experiments/privacy/published.toml` takes a minute or two, most of it for `tight`.

    Args:
        source: The file, or its text. A string without a line break is a path.
        tight: Also compute `Row.tight` and `Row.spent`.

    Raises:
        ValueError: If the file is not as expected, with the entry and the key.
    """
    rows = []
    for entry in read_entries(source):
        try:
            rows.append(_row(entry, tight))
        except ValueError as error:
            raise ValueError(f"{entry.paper}, {entry.place}, {_words(entry)}: {error}") from error
    return rows


def grid(rows: list[Row]) -> list[list[str]]:
    """Returns the rows as texts, header first. The last text is the number of the remark."""
    result = [list(_HEAD)]
    numbers = _remarks(rows)
    for row in rows:
        recorded = f"not printed; {row.recorded:,} as we assume" if row.recorded is not None else ""
        result.append(
            [
                row.paper,
                row.place,
                row.settings,
                row.quantity.replace("_", " "),
                f"{row.published:,}" if row.published is not None else recorded,
                row.missing or _number(row.reproduced, row.quantity),
                row.convention,
                {True: "yes", False: "NO", None: "–"}[row.agrees],
                _number(row.tight, row.quantity),
                _number(row.spent, "epsilon"),
                str(numbers.get(row.remark, "")),
            ]
        )
    return result


def render(rows: list[Row]) -> str:
    """Renders the rows as a Markdown table, with the remarks below it."""
    head, *body = grid(rows)
    lines = [head, ["---"] * len(head), *body]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    notes = "\n".join(f"{number}. {remark}" for remark, number in _remarks(rows).items())
    return f"{table}\n\n{notes}\n" if notes else f"{table}\n"


def page(rows: list[Row]) -> str:
    """Renders the table as a page: what it shows, the command, the numbers."""
    printed = [row for row in rows if row.published is not None]
    plain = [row for row in printed if not row.fitted]
    fitted = [row for row in printed if row.fitted]
    assumed = [row for row in rows if row.published is None]
    counts = [
        f"{_agreeing(plain)} of {len(plain)} printed numbers come out by the convention named beside them, "
        "within a tolerance where the remark gives one.",
        f"{_agreeing(fitted)} of {len(fitted)} more come out after a setting that the paper does not print "
        "was fitted to them, which is no confirmation.",
        f"{len(assumed)} are printed nowhere: they follow from what is printed and from our assumptions.",
    ]
    return (
        f"# {TITLE}\n\n**Claim.** The papers print what their runs cost, or the budget that they kept. Here "
        "each number is computed again, beside the tight value by PLD.\n\n```bash\n"
        "adamas reproduce privacy/published   # about 2 minutes, no training; needs opacus for PRV\n```\n\n"
        + "\n".join(f"- {words}" for words in counts)
        + f"\n\n{render(rows)}"
    )


def _agreeing(rows: list[Row]) -> int:
    return sum(row.agrees is True for row in rows)


def _remarks(rows: list[Row]) -> dict[str, int]:
    """Numbers the remarks in order of appearance."""
    return {
        remark: number for number, remark in enumerate(dict.fromkeys(r.remark for r in rows if r.remark), 1)
    }


def _number(value: float | None, quantity: str) -> str:
    if value is None:
        return "–"
    if quantity == "epsilon":
        return rounded_up(value, 3)
    return format(value, {"steps": ",.0f", "noise_multiplier": ".4g"}[quantity])


# --- the numbers ----------------------------------------------------------------------------------------


def _row(entry: Entry, tight: bool) -> Row:
    reproduced = _reproduced(entry)
    has_run = entry.published is not None and entry.what != "epsilon"
    return Row(
        paper=entry.paper,
        place=entry.place,
        quantity=entry.what,
        settings=_words(entry),
        published=entry.published,
        recorded=entry.recorded,
        fitted=entry.fitted,
        convention=CONVENTIONS[entry.accountant],
        reproduced=reproduced,
        tight=_tight(entry) if tight else None,
        spent=_spent(entry) if tight and has_run else None,
        agrees=None if reproduced is None else _agrees(reproduced, entry),
        missing="needs opacus" if reproduced is None else "",
        remark=entry.remark,
    )


def _words(entry: Entry) -> str:
    parts = [entry.sampling]
    if entry.max_degree is not None:
        parts.append(f"K = {entry.max_degree}")
    if entry.noise_multiplier is not None:
        parts.append(f"{'λ' if entry.max_degree is not None else 'σ'} = {entry.noise_multiplier:g}")
    if entry.steps is not None:
        epochs = f"{entry.epochs} epochs, " if entry.epochs is not None else ""
        parts.append(f"{epochs}{entry.steps:,} steps")
    if entry.epsilon is not None:
        parts.append(f"ε = {limit(entry.epsilon)}")
    return f"{entry.task}: {', '.join(parts)}, δ = {entry.delta:.2g}"


def _agrees(reproduced: float, entry: Entry) -> bool:
    if entry.tolerance is not None:
        allowed = entry.tolerance
    else:
        exponent = entry.value.as_tuple().exponent
        assert isinstance(exponent, int)
        allowed = 0.5 * 10.0**exponent + (_NOISE_TICK if entry.what == "noise_multiplier" else 0.0)
    return abs(reproduced - float(entry.value)) <= allowed + 1e-9


def _reproduced(entry: Entry) -> float | None:
    """Computes the number by the convention of the entry; None without Opacus."""
    value = (
        _by_prv(entry) if entry.accountant == "prv" else _by(entry, entry.accountant.removeprefix("graph-"))
    )
    if value is None or entry.what != "steps":
        return value
    value += entry.stop == "beyond"
    return math.ceil(value / entry.whole_epochs) * entry.whole_epochs


def _by_prv(entry: Entry) -> float | None:
    try:
        accountants = importlib.import_module("opacus.accountants")
    except ImportError:
        return None
    accountant = accountants.PRVAccountant()
    accountant.history = [(entry.noise_multiplier, entry.sampling_rate, entry.steps)]
    return float(accountant.get_epsilon(entry.delta))


@lru_cache(maxsize=256)
def _by(entry: Entry, accountant: str) -> float:
    """Computes the number by RDP or PLD, or the most steps that the budget allows."""
    asked = {"noise_multiplier": entry.noise_multiplier, "epsilon": entry.epsilon, "steps": entry.steps}
    known: dict[str, Any] = {key: value for key, value in asked.items() if key != entry.what and value}
    known |= {"delta": entry.delta, "accountant": accountant}
    if entry.accountant == "graph-rdp":
        known |= {"nodes": entry.dataset_size, "batch_size": entry.batch_size, "max_degree": entry.max_degree}
        return float(getattr(graph_accounting, entry.what)(**known))
    return float(getattr(calibrate, entry.what)(sampling_rate=entry.sampling_rate, **known))


def _tight(entry: Entry) -> float:
    """Computes the number by PLD."""
    if entry.what == "epsilon" or entry.accountant == "graph-rdp":
        return _by(entry, "pld")
    assert entry.epsilon is not None
    known: dict[str, Any] = {"delta": entry.delta, "sampling_rate": entry.sampling_rate}
    if entry.what == "steps":
        return _tight_search("steps", entry.epsilon, _by(entry, "rdp"), z=entry.noise_multiplier, **known)
    return _tight_search("noise_multiplier", entry.epsilon, _by(entry, "rdp"), steps=entry.steps, **known)


def _spent(entry: Entry) -> float:
    """Computes the epsilon by PLD of the run with the published steps or noise."""
    run: dict[str, Any] = {"noise_multiplier": entry.noise_multiplier, "steps": entry.steps}
    run[entry.what] = int(entry.value) if entry.what == "steps" else float(entry.value)
    run |= {"delta": entry.delta, "accountant": "pld"}
    if entry.accountant == "graph-rdp":
        run |= {"nodes": entry.dataset_size, "batch_size": entry.batch_size, "max_degree": entry.max_degree}
        return graph_accounting.epsilon(**run)
    return calibrate.epsilon(sampling_rate=entry.sampling_rate, **run)


@lru_cache(maxsize=256)
def _tight_search(
    what: str,
    epsilon: float,
    start: float,
    *,
    delta: float,
    sampling_rate: float,
    z: float | None = None,
    steps: int | None = None,
) -> float:
    """Finds what `calibrate` answers by PLD, with two or three slow evaluations instead of twenty.

    Coarse cells give the shape of epsilon, and one fine value the distance to it. RDP's answer is the start:
    the tight one has more steps, or less noise.
    """
    tick = _TIGHT_TICK[what]

    def run(x: float) -> tuple[float, int]:
        if what == "steps":
            assert z is not None
            return z, max(1, round(x))
        assert steps is not None
        return x, steps

    def coarse(x: float) -> float:
        noise_multiplier, count = run(x)
        gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
        event = dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian)
        return composition.composed_epsilon([(event, count)], delta, "pld", coarse=True)

    def fine(x: float) -> float:
        noise_multiplier, count = run(x)
        return calibrate.epsilon(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, steps=count, delta=delta
        )

    toward = 1.25 if what == "steps" else 0.8
    near = _root(coarse, epsilon, start, toward)
    excess = coarse(near) - fine(near)
    x = _root(coarse, epsilon + excess, near, toward) / tick
    ticks = math.floor(x) if what == "steps" else math.ceil(x)
    while fine(ticks * tick) > epsilon:
        ticks += -1 if what == "steps" else 1
    return ticks * tick


def _root(value: Callable[[float], float], target: float, start: float, toward: float) -> float:
    """Finds where `value`, which rises from `start` in direction `toward`, reaches the target."""

    @cache
    def above(log_x: float) -> float:
        return math.log(value(math.exp(log_x)) / target)

    low, stride = math.log(start), math.log(toward)
    while above(low) > 0:
        low -= stride
    high = low + stride
    while above(high) < 0:
        low, high = high, high + stride
    return math.exp(brentq(above, low, high, xtol=1e-4))
