"""Draws plots as SVG inside a page: axes and curves by matplotlib, colours and font by the page.

A plot is drawn in colours that stand for variables of the style sheet, so that it follows the page's light or
dark scheme. Each has a sentence that says what it shows, for those who do not see it.
"""

import io
import itertools
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# Colours that stand for variables of the style sheet: text, grid, paper, and the series.
INK, GRID, PAPER, SERIES = "#000001", "#000002", "#000003", [f"#0001{i:02x}" for i in range(10)]
DASHES = ("solid", "dashed", "dotted")
MOST_SERIES = 24  # 10 and 3 have no common factor: all differ

# As matplotlib and as SVG have them; 10 and 7 have no common factor either.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SHAPES = (
    '<circle cx="16" cy="6" r="4"/>',
    '<path d="M12 2h8v8h-8z"/>',
    '<path d="M16 1.5l4.8 8.5h-9.6z"/>',
    '<path d="M16 1l5 5-5 5-5-5z"/>',
    '<path d="M16 10.5l4.8-8.5h-9.6z"/>',
    '<path d="M14.3 1.5h3.4v2.8h2.8v3.4h-2.8v2.8h-3.4v-2.8h-2.8v-3.4h2.8z"/>',
    '<path d="M13 1.5l3 2.6 3-2.6 2.2 2.2-2.7 2.3 2.7 2.3-2.2 2.2-3-2.6-3 2.6-2.2-2.2 2.7-2.3-2.7-2.3z"/>',
)


def colour(i: int) -> str:
    """Of the i-th series."""
    return SERIES[i % len(SERIES)]


def marker(i: int) -> str:
    """Of the i-th series."""
    return MARKERS[i % len(MARKERS)]


def legend(names: Iterable[str]) -> str:
    """Shows which colour and dash belongs to which name."""
    keys = (
        f'<span><i style="border-top-style:{DASHES[i % len(DASHES)]};'
        f'border-color:var(--s{i % len(SERIES)})"></i>{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def marker_legend(names: Iterable[str], *, published: bool) -> str:
    """Shows which colour and marker belongs to which name, and that dashes mean published."""
    keys = [
        f'<span><svg viewBox="0 0 32 12" aria-hidden="true" style="color:var(--s{i % len(SERIES)})">'
        f'<path d="M0 6h32" stroke="currentColor" stroke-width="2"/>'
        f'<g fill="currentColor">{_SHAPES[i % len(_SHAPES)]}</g></svg>{escape(name)}</span>'
        for i, name in enumerate(names)
    ]
    if published:
        keys.append(
            '<span><svg viewBox="0 0 32 12" aria-hidden="true"><path d="M0 6h32" stroke="currentColor" '
            'stroke-width="2" stroke-dasharray="5 3"/></svg>as published</span>'
        )
    return f'<p class="legend">{"".join(keys)}</p>'


def axes(width: float = 4.8, height: float = 2.9) -> tuple[Any, Any]:
    """Makes an empty plot, with a size in inches that a page scales to its place."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError(
            "A report needs matplotlib. Install it with: pip install adamas[report]"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["bottom", "left"]].set_color(INK)
    ax.tick_params(which="both", colors=INK, labelsize=9)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_color(INK)
        axis.label.set_fontsize(9.5)
    ax.yaxis.labelpad = 7  # words are larger on a phone
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    return figure, ax


def words_on(axis: Any, places: Sequence[float], texts: Sequence[str], longest: int = 26) -> None:
    """Sets ticks with texts from a file: no formulas, and not too long."""
    cut = [text if len(text) <= longest else text[: longest - 1].rstrip() + "…" for text in texts]
    axis.set_ticks(places, labels=cut, parse_math=False)
    axis.set_ticks([], minor=True)
    if axis.axis_name == "y":
        axis.figure.get_layout_engine().set(rect=(0.08, 0, 0.92, 1))  # words are larger on a phone


_PLOTS = itertools.count()


def svg(figure: Any, words: str, titles: Mapping[str, str] | None = None) -> str:
    """Returns a figure as SVG inside a page: its own ids, the page's colours and font.

    Args:
        figure: The figure.
        words: What it shows, with the main numbers.
        titles: Tooltips by the names that artists were given with `set_gid`.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "adamas"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page's font is another
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # the page has it
    mark = f"plot{next(_PLOTS)}-"
    text = re.sub(r'\bid="', f'id="{mark}', text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{mark}", text)
    for i, placeholder in enumerate(SERIES):
        text = text.replace(placeholder, f"var(--s{i})")
    for placeholder, name in ((INK, "ink"), (GRID, "grid"), (PAPER, "card")):
        text = text.replace(placeholder, f"var(--{name})")
    for name, title in (titles or {}).items():
        opening = f'<g id="{mark}{name}">'
        text = text.replace(opening, f"{opening}<title>{escape(title)}</title>")
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt" ', "", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)
