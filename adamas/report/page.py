"""Builds a page from its pieces.

A page needs no network: its policy allows its own style, and the one script that sorts tables, by its hash.
Arguments called `words` are plain texts, and escaped here; those called `html` are put in as they are.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from adamas._words import rounded_up


@dataclass(frozen=True)
class Field:
    """A field of a table.

    Attributes:
        html: What is shown.
        value: What the table is sorted by; None comes last.
    """

    html: str
    value: float | str | None = None


def document(title: str, parts: Iterable[str]) -> str:
    """Builds a whole page. It has a script only if a table can be sorted."""
    body = "\n".join(part for part in parts if part)
    style = _resource("style.css")
    script = _resource("sort.js") if '<table class="sortable">' in body else ""
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title><style>{style}</style></head>",
            f"<body><main>\n{body}\n</main>",
            *([f"<script>{script}</script>"] if script else []),
            "</body>",
            "</html>\n",
        ]
    )


def _resource(name: str) -> str:
    return (files("adamas.report") / name).read_text(encoding="utf-8")


# --- pieces ---------------------------------------------------------------------------------------------


def heading(level: int, words: str, anchor: str = "") -> str:
    """Builds a heading; level 1 is the page's own."""
    place = f' id="{anchor}"' if anchor else ""
    return f"<h{level}{place}>{escape(words)}</h{level}>"


def paragraph(words: str, kind: str = "") -> str:
    """Builds a paragraph from text with **bold** and `code`."""
    return f"<p{_class(kind)}>{inline(words)}</p>"


def inline(words: str) -> str:
    """Converts **bold** and `code` in a text."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", html)


def warning(name: str, why: str) -> str:
    """Builds a warning that something is not private."""
    return f'<p class="warning" role="alert"><b>NOT PRIVATE: {escape(name)}.</b> {escape(why)}</p>'


def bullets(items: Iterable[str]) -> str:
    """Builds a list of texts; empty if there are none."""
    listed = "".join(f"<li>{inline(item)}</li>" for item in items)
    return f"<ul>{listed}</ul>" if listed else ""


def definitions(values: Mapping[Any, Any], kind: str = "list") -> str:
    """Builds a list of names and values."""
    pairs = (f"<dt>{escape(str(name))}</dt><dd>{escape(plain(value))}</dd>" for name, value in values.items())
    if kind == "facts":  # beside one another: each pair stays together
        pairs = (f"<div>{pair}</div>" for pair in pairs)
    return f'<dl class="{kind}">{"".join(pairs)}</dl>'


def details(words: str, html: str, *, opened: bool = False) -> str:
    """Builds a part that can be folded."""
    return f"<details{' open' if opened else ''}><summary>{escape(words)}</summary>{html}</details>"


def card(title: str, words: str, drawing: str) -> str:
    """Builds a figure with its caption."""
    return f"<figure><figcaption><b>{escape(title)}.</b> {escape(words)}</figcaption>{drawing}</figure>"


def cards(figures: Iterable[str], *, large: bool = False) -> str:
    """Builds a row of figures, as many as fit; empty if there are none."""
    html = "".join(figures)
    return f'<div class="cards{" large" if large else ""}">{html}</div>' if html else ""


def data_table(
    words: str, heads: Sequence[Field], rows: Iterable[Sequence[Field]], *, sortable: bool = False
) -> str:
    """Builds a table in a box of its own, which scrolls if it is wide.

    Args:
        words: What the table shows, for screen readers.
        heads: Of the columns. Those with a value of "n" are of numbers, and aligned to the right.
        rows: Their fields; the first is the head of the row.
        sortable: Whether a click on a head sorts. Without scripts, it does not.
    """
    kinds = [_class("n") if head.value == "n" else "" for head in heads]
    top = "".join(f'<th scope="col"{kind}>{head.html}</th>' for head, kind in zip(heads, kinds, strict=True))
    body = "".join(f"<tr>{''.join(_fields(row, kinds))}</tr>" for row in rows)
    name = ' class="sortable"' if sortable else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(words)}">'
        f"<table{name}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _fields(row: Sequence[Field], kinds: Sequence[str]) -> Iterator[str]:
    for i, (field, kind) in enumerate(zip(row, kinds, strict=True)):
        value = "" if field.value is None else f' data-value="{escape(str(field.value))}"'
        yield f"<td{kind}{value}>{field.html}</td>" if i else f'<th scope="row"{value}>{field.html}</th>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


# --- values ---------------------------------------------------------------------------------------------


def at(value: Any, *keys: str) -> Any:
    """Looks up a value inside nested objects; None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value: Any) -> float:
    """Returns a number; NaN for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def short(value: Any, unit: str = "") -> str:
    """Formats a number with four digits, or a dash."""
    known = number(value)
    return "–" if math.isnan(known) else f"{known:.4g}{unit}"


def plain(value: Any) -> str:
    """Formats a setting."""
    return value if isinstance(value, str) else _exponent(json.dumps(value, ensure_ascii=False))


def _exponent(text: str) -> str:
    """Formats 1e-05 as 1e-5."""
    return re.sub(r"(\de[+-])0+(?=\d)", r"\1", text)


def extent(values: Iterable[float], form: str = "g") -> str:
    """Formats a value, or the range of several: "0.5 to 1"."""
    return _ends([_exponent(format(value, form)) for value in sorted(values)])


def epsilon_text(values: Iterable[float | None], decimals: int = 2) -> str:
    """Formats an epsilon, or a range of them, rounded up; a dash if an accountant has no bound."""
    known = sorted(value for value in values if value is not None)
    return _ends([rounded_up(value, decimals) for value in known]) if known else "–"


def _ends(texts: Sequence[str]) -> str:
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def listing(texts: Sequence[str], most: int) -> str:
    """Joins texts, at most a given number of them."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
