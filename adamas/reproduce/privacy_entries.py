"""Reads the list of privacy numbers that papers print: `experiments/privacy/published.toml`.

Each `[[table]]` has what its `rows` have in common; a row is a number, the settings of its run, and the
convention that reproduces it.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from adamas import _validate

QUANTITIES = ("epsilon", "steps", "noise_multiplier")
"""Kinds of numbers."""

CONVENTIONS = {
    "pld": "PLD",
    "rdp": "RDP",
    "prv": "PRV of Opacus",
    "graph-rdp": "RDP over graph terms",
}
"""Accountants that can reproduce a number, with their names in the table."""

_ANSWERS = {"pld": QUANTITIES, "rdp": QUANTITIES, "prv": ("epsilon",), "graph-rdp": ("epsilon", "steps")}
_STOPS = ("within", "beyond")

_TEXTS = ("paper", "place", "task", "what", "accountant", "stop", "tolerance_reason", "fitted", "remark")
_COUNTS = ("batch_size", "dataset_size", "steps", "epochs", "max_degree", "whole_epochs")
_NUMBERS = ("noise_multiplier", "epsilon", "tolerance", "published", "recorded")
_SHARES = ("delta", "sampling_rate")
_REQUIRED = ("paper", "place", "task", "what", "accountant", "delta")
_KEYS = (*_TEXTS, *_COUNTS, *_NUMBERS, *_SHARES)


@dataclass(frozen=True)
class Entry:
    """A checked entry: the settings of a run. The number to compute is None."""

    paper: str
    place: str
    task: str
    what: str
    accountant: str
    delta: float
    sampling_rate: float
    sampling: str
    dataset_size: int | None
    batch_size: int | None
    max_degree: int | None
    noise_multiplier: float | None
    epsilon: float | None
    steps: int | None
    epochs: int | None
    stop: str
    whole_epochs: int
    published: Decimal | None
    recorded: Decimal | None
    tolerance: float | None
    fitted: str
    remark: str

    @property
    def value(self) -> Decimal:
        """The number that should come out."""
        value = self.recorded if self.published is None else self.published
        assert value is not None
        return value


def read_entries(source: Path | str) -> list[Entry]:
    """Reads and checks a file, or its text; a string without a line break is a path.

    Raises:
        ValueError: If the file is not as expected, with the entry and the key.
    """
    if isinstance(source, Path) or "\n" not in source:
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"Expected {path} to be a readable file: {error}.") from error
        where = f"{path}: "
    else:
        text, where = source, ""
    try:
        # Decimal keeps the digits: 4.00 is printed more exactly than 4.
        values = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}expected TOML: {error}.") from error
    tables = values.pop("table", None)
    if values or not _is_list_of_tables(tables):
        found = ", ".join(map(repr, values)) or "none"
        raise ValueError(f"{where}expected [[table]] entries and nothing else; other keys: {found}.")
    entries = []
    for number, table in enumerate(tables, 1):
        rows = table.pop("rows", None)
        name = f"{where}table {number} ({table.get('paper', 'no paper')}, {table.get('place', 'no place')})"
        if not _is_list_of_tables(rows):
            raise ValueError(f"{name}: expected the key 'rows' to be a list of tables, with one row or more.")
        for index, row in enumerate(rows, 1):
            try:
                entries.append(_entry(_merged(table, row)))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}, row {index}: {error}") from error
    return entries


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _merged(table: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _checked(key, value) for key, value in {**table, **row}.items()}


def _checked(key: str, value: Any) -> Any:
    if key not in _KEYS:
        raise ValueError(f"Unknown key {key!r}. Known keys: {', '.join(_KEYS)}.")
    if key in _TEXTS:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"Expected {key}={value!r} to be a text that is not empty.")
        return value
    if key in _COUNTS:
        (_validate.whole if key == "max_degree" else _validate.count)(**{key: value})
        return value
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise ValueError(f"Expected {key}={value!r} to be a number.")
    if key in _SHARES:
        share = _share(key, value)
        (_validate.rate if key == "sampling_rate" else _validate.probability)(**{key: share})
        return share
    if isinstance(value, str):
        raise ValueError(f"Expected {key}={value!r} to be a number, not a text. Remove the quotes.")
    _validate.positive(**{key: float(value)})
    return Decimal(value) if key in ("published", "recorded") else float(value)


def _share(key: str, value: int | Decimal | str) -> float:
    try:
        return float(Fraction(value))
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f'Expected {key}={value!r} to be a number or a fraction such as "1/11".') from error


def _entry(values: dict[str, Any]) -> Entry:
    _need(values, *_REQUIRED)
    what, accountant = values["what"], values["accountant"]
    _validate.one_of(QUANTITIES, what=what)
    _validate.one_of(CONVENTIONS, accountant=accountant)
    if what not in _ANSWERS[accountant]:
        raise ValueError(
            f"Expected what={what!r} with another accountant: {accountant!r} answers "
            f"{' and '.join(map(repr, _ANSWERS[accountant]))} only."
        )
    _one_of_two(values, "published", "recorded")
    if ("tolerance" in values) != ("tolerance_reason" in values):
        raise ValueError(
            "Expected 'tolerance' and 'tolerance_reason' together: a tolerance needs its reason."
        )
    _need(values, *({"noise_multiplier", "epsilon"} - {what}))
    _refuse(values, what, because=f"the entry asks for it (what={what!r})")
    if what == "steps":
        _refuse(values, "epochs", because="the entry asks for the steps")
        _validate.one_of(_STOPS, stop=values.setdefault("stop", "within"))
        value: Decimal = values["published" if "published" in values else "recorded"]
        if value != int(value):
            raise ValueError(f"Expected a whole number of steps, got {value}.")
    else:
        _refuse(values, "stop", "whole_epochs", because="the entry does not ask for steps")
        _one_of_two(values, "steps", "epochs")
    if "sampling_rate" in values:
        _refuse(values, "batch_size", "dataset_size", because="'sampling_rate' is given")
        _refuse(values, "epochs", because="without 'batch_size' an epoch has no steps. Give 'steps'")
    else:
        _need(values, "batch_size", "dataset_size")
        if values["batch_size"] > values["dataset_size"]:
            raise ValueError(
                f"Expected batch_size={values['batch_size']} <= dataset_size={values['dataset_size']}."
            )
    if accountant == "graph-rdp":
        _refuse(values, "sampling_rate", because="graphs need 'batch_size' and 'dataset_size', the nodes")
        _need(values, "max_degree")
    else:
        _refuse(values, "max_degree", because=f"accountant={accountant!r} is not for graphs")
    return _built(values)


def _built(values: dict[str, Any]) -> Entry:
    size, batch = values.get("dataset_size"), values.get("batch_size")
    steps = values.get("steps")
    if size is None or batch is None:
        rate = values["sampling_rate"]
        sampling = f"q = 1/{1 / rate:g}" if float(1 / rate).is_integer() else f"q = {rate:g}"
    else:
        rate, sampling = batch / size, f"{batch:,} of {size:,}"
        if "epochs" in values:
            steps = values["epochs"] * math.ceil(size / batch)
    reason = values.get("tolerance_reason")
    remarks = [values.get("remark", ""), f"Within {values['tolerance']:g}: {reason}." if reason else ""]
    optional = ("max_degree", "noise_multiplier", "epsilon", "epochs", "published", "recorded", "tolerance")
    fields: dict[str, Any] = {key: values.get(key) for key in optional}
    fields |= {key: values[key] for key in _REQUIRED}
    return Entry(
        **fields,
        sampling_rate=rate,
        sampling=sampling,
        dataset_size=size,
        batch_size=batch,
        steps=steps,
        stop=values.get("stop", "within"),
        whole_epochs=values.get("whole_epochs", 1),
        fitted=values.get("fitted", ""),
        remark=" ".join(remark for remark in remarks if remark),
    )


def _need(values: Mapping[str, Any], *keys: str) -> None:
    for key in sorted(keys):
        if key not in values:
            raise ValueError(f"Missing key {key!r}. Add it to the row or to its table.")


def _refuse(values: Mapping[str, Any], *keys: str, because: str) -> None:
    for key in keys:
        if key in values:
            raise ValueError(f"Expected no key {key!r}: {because}. Remove it.")


def _one_of_two(values: Mapping[str, Any], one: str, other: str) -> None:
    if (one in values) == (other in values):
        found = "both" if one in values else "neither"
        raise ValueError(f"Expected one of the keys {one!r} and {other!r}, found {found}.")
