"""Runs as one HTML page: what was promised, what came out, what the rule did.

Reads the files of `adamas train --diagnose`: `result.json`, `ledger.json` and `diagnostics.jsonl`. The page
needs no network and no script. All words are HTML, escaped; the plots hold axes and curves only, and take
their colours from the page, so that they follow its light or dark scheme.
"""

import io
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

_NAN = math.nan

# Colours that stand for variables of the style sheet: text, grid, and the series.
_INK, _GRID, _SERIES = "#000001", "#000002", [f"#0001{i:02x}" for i in range(8)]
_DASHES = ("solid", "dashed", "dotted")
_MOST_SERIES = len(_SERIES) * len(_DASHES)  # 8 and 3 have no common factor: all differ


@dataclass(frozen=True)
class _Run:
    """What one folder holds; `result` is empty for a run that did not finish."""

    name: str
    result: dict[str, Any]
    ledger: dict[str, Any]
    lines: list[dict[str, Any]]

    def private(self) -> bool:
        """Not if any of its files says otherwise."""
        return (
            self.result.get("private") is not False
            and self.result.get("epsilon") != "inf"
            and all(line.get("private") is not False for line in self.lines)
            and not _without_noise(self.ledger)
        )


@dataclass(frozen=True)
class _Panel:
    """A curve over the steps: the name of a value in the diagnostics, and how it is drawn."""

    key: str
    title: str
    label: str
    words: str
    log: bool = False
    reference: float | None = None


_PANELS = [
    _Panel(
        "on_floor",
        "On the floor",
        "share of coordinates",
        "Coordinates whose second moment, less the noise, is at or below the floor: they step like SGD.",
    ),
    _Panel(
        "noise_share",
        "Noise in the second moment",
        "Φ / v̂",
        "1: the second moment is noise, and an uncorrected rule is not adaptive.",
        reference=1.0,
    ),
    _Panel(
        "signal_to_noise",
        "Signal to noise of the first moment",
        "|m̂|² / expected noise",
        "1 is what noise alone gives; the excess over 1 is signal.",
        log=True,
        reference=1.0,
    ),
    _Panel(
        "effective_lr",
        "Effective learning rate",
        "lr / denominator",
        "Median over the coordinates; the band holds 90% of them.",
        log=True,
    ),
    _Panel("update_rms", "Size of the update", "root mean square", "Of a coordinate, per step.", log=True),
    _Panel(
        "center_norm",
        "Centre of clipping",
        "whitened norm (clip radii)",
        "0 without a centre. Far above 1 with a signal to noise near 1, the centre is noise and clips all.",
        reference=1.0,
    ),
]

_MOMENTS = [("v_hat", "private"), ("v_corrected", "less the noise variance"), ("raw", "WITHOUT NOISE")]
_UPDATES = [
    ("update_uncorrected", "m̂ / √v̂"),
    ("update", "m̂ / denominator, as made"),
    ("raw", "WITHOUT NOISE"),
]


def write_report(folders: Sequence[Path], out: Path) -> list[str]:
    """Writes a page about the runs in some folders.

    Args:
        folders: Each as `adamas train --out` wrote it; the curves of several share their plots.
        out: The HTML file.

    Returns:
        The names of the runs that are not private, which the page marks in red.

    Raises:
        ValueError: If a folder holds no run, or a file that cannot be read.
        RuntimeError: If matplotlib is missing.
    """
    runs = [_load(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    page = _page(runs)
    out.write_text(page, encoding="utf-8")
    return [run.name for run in runs if not run.private()]


# --- files ----------------------------------------------------------------------------------------------


def _names(folders: Sequence[Path]) -> list[str]:
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _load(folder: Path, name: str) -> _Run:
    result, lines = folder / "result.json", folder / "diagnostics.jsonl"
    if not result.exists() and not lines.exists():
        raise ValueError(
            f"Expected a folder that adamas train wrote, found neither {result.name} nor {lines.name} in "
            f"{folder}."
        )
    # A run that died while it wrote may have left a last line without an end.
    text = _read(lines).rpartition("\n")[0]
    return _Run(
        name,
        _parsed(_read(result) or "{}", result),
        _parsed(_read(folder / "ledger.json") or "{}", folder / "ledger.json"),
        [_parsed(line, lines) for line in text.splitlines()],
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected {path} to hold JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"Expected {path} to hold a JSON object, got {type(value).__name__}.")
    return value


def _at(value: Any, *keys: str) -> Any:
    """A value inside nested objects, None where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _without_noise(value: Any) -> bool:
    """Whether a ledger holds a Gaussian release of multiplier 0."""
    if isinstance(value, dict):
        return value.get("noise_multiplier") == 0 or any(map(_without_noise, value.values()))
    return isinstance(value, list) and any(map(_without_noise, value))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _NAN


# --- the page -------------------------------------------------------------------------------------------


def _page(runs: list[_Run]) -> str:
    title = "adamas: " + ", ".join(run.name for run in runs)
    parts = [f"<h1>{escape(title)}</h1>", *map(_warning, runs), _table(runs)]
    if any(run.lines for run in runs):
        parts += ["<h2>Over time, all parameters</h2>", _legend(run.name for run in runs)]
        parts.append(_curves([(run.lines, ("overall",)) for run in runs]))
        parts += _histograms(runs)
    for run in runs:
        parts += _section(run)
    return _HTML.format(title=escape(title), style=_STYLE, body="\n".join(parts))


def _warning(run: _Run) -> str:
    if run.private():
        return ""
    why = str(run.result.get("privacy", "Its files hold a release without noise."))
    return f'<p class="warning" role="alert"><b>NOT PRIVATE: {escape(run.name)}.</b> {escape(why)}</p>'


def _table(runs: list[_Run]) -> str:
    heads = ["run", "rule", "data", "model", "ε", "δ", "noise multiplier", "steps", "test accuracy", "state"]
    rows = []
    for run in runs:
        result, last = run.result, run.lines[-1] if run.lines else {}
        rows.append(
            [
                escape(run.name),
                *(escape(str(_at(result, "settings", key) or "–")) for key in ("rule", "data", "model")),
                _figure(result.get("epsilon")) if run.private() else '<b class="red">∞, NOT PRIVATE</b>',
                _figure(result.get("delta")),
                _figure(result.get("noise_multiplier")),
                _figure(result.get("steps", last.get("step"))),
                "–" if "test_accuracy" not in result else f"{_number(result['test_accuracy']):.2%}",
                _figure(_at(last, "overall", "state_bytes_per_parameter"), " bytes per parameter"),
            ]
        )
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _figure(value: Any, unit: str = "") -> str:
    number = _number(value)
    return "–" if math.isnan(number) else f"{number:.4g}{unit}"


def _section(run: _Run) -> Iterator[str]:
    yield f"<h2>{escape(run.name)}</h2>"
    yield f'<p class="{"" if run.private() else "red"}">{escape(_statement(run))}</p>'
    settings = _at(run.result, "settings") or {}
    items = [(key, value) for key, value in settings.items() if value not in (None, {}, False)]
    if items:
        listed = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(_plain(v))}</dd>" for k, v in items)
        yield f"<details open><summary>Settings</summary><dl>{listed}</dl></details>"
    entries = [*(_at(run.ledger, "entries") or []), *filter(None, [_at(run.ledger, "open")])]
    if entries:
        listed = "".join(
            f"<li>{_at(entry, 'count') or 1} × {escape(_event(_at(entry, 'event')))}</li>"
            for entry in entries
        )
        yield f"<details open><summary>Ledger: what was released</summary><ul>{listed}</ul></details>"
    if not run.lines:
        yield "<p>Trained without --diagnose, so there is nothing to draw.</p>"
        return
    layers = _at(run.lines[-1], "layers") or {}
    largest = sorted(layers, key=lambda name: -_number(_at(layers, name, "coordinates")))[:_MOST_SERIES]
    shown = [name for name in layers if name in largest]
    left_out = f" ({len(shown)} largest of {len(layers)} parameters)" if len(shown) < len(layers) else ""
    yield f"<h3>By layer{left_out}</h3>" + _legend(shown)
    yield _curves([(run.lines, ("layers", name)) for name in shown])


def _statement(run: _Run) -> str:
    if not run.result:
        return "The run did not finish: there is no result.json, so what it spent is not known here."
    words = [str(run.result.get("privacy", "")), str(run.result.get("note", ""))]
    return " ".join(dict.fromkeys(words)) if words[1] not in words[0] else words[0]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _event(event: Any) -> str:
    """An event of the ledger in one line."""
    if isinstance(event, dict):
        fields = ", ".join(f"{key}={_event(value)}" for key, value in event.items() if key != "kind")
        return f"{str(event.get('kind')).removesuffix('DpEvent')}({fields})"
    return f"[{', '.join(map(_event, event))}]" if isinstance(event, list) else str(event)


def _legend(names: Iterable[str]) -> str:
    keys = (
        f'<span><i style="border-top-style:{_DASHES[i % len(_DASHES)]};'
        f'border-color:var(--s{i % len(_SERIES)})"></i>{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def _card(title: str, words: str, svg: str) -> str:
    return f"<figure><figcaption><b>{escape(title)}.</b> {escape(words)}</figcaption>{svg}</figure>"


# --- plots ----------------------------------------------------------------------------------------------


def _curves(series: list[tuple[list[dict[str, Any]], tuple[str, ...]]]) -> str:
    """The panels that have a value in any of the series, each the lines of a run and a place in them."""
    cards = []
    for panel in _PANELS:
        curves = []
        for lines, place in series:
            values = [_at(line, *place, panel.key) for line in lines]
            steps = [_number(line.get("step")) for line in lines]
            if panel.key == "effective_lr":
                curves.append((steps, *([_number(_at(v, q)) for v in values] for q in ("50%", "5%", "95%"))))
            else:
                curves.append((steps, [_number(v) for v in values], [], []))
        if any(not math.isnan(y) for _, ys, _, _ in curves for y in ys):
            cards.append(_card(panel.title, panel.words, _curve_plot(panel, curves)))
    if not cards:
        return "<p>The rule has no moments to show.</p>"
    return f'<div class="cards">{"".join(cards)}</div>'


def _curve_plot(panel: _Panel, curves: list[tuple[list[float], ...]]) -> str:
    figure, ax = _axes()
    for i, (steps, middle, low, high) in enumerate(curves):
        colour = _SERIES[i % len(_SERIES)]
        one = len(steps) == 1
        ax.plot(steps, middle, color=colour, linestyle=_DASHES[i % len(_DASHES)], marker="o" if one else None)
        if low and len(curves) <= 4:
            ax.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    if panel.reference is not None:
        ax.axhline(panel.reference, color=_INK, linewidth=0.8, linestyle="dashed")
    values = [y for _, *parts in curves for ys in parts for y in ys if not math.isnan(y)]
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
    return _svg(figure)


def _histograms(runs: list[_Run]) -> Iterator[str]:
    """Second moments and updates after the last step, a card for each run on the same axis."""
    last = [(run, run.lines[-1]) for run in runs if run.lines and _at(run.lines[-1], "histograms")]
    for title, kinds, raw, label, lines in (
        ("Second moment", _MOMENTS, "v_hat", "second moment of a coordinate", ("noise_variance", "floor")),
        ("Updates", _UPDATES, "update", "|update| of a coordinate / learning rate", ()),
    ):
        drawn = []
        for run, line in last:
            found = [_at(line, "histograms", key) for key, _ in kinds[:2]]
            found.append(_at(line, "raw", "histograms", raw))
            drawn.append((run, found, [_number(_at(line, "histograms", key)) for key in lines]))
        if not drawn:
            continue
        ends = [end for _, found, _ in drawn for one in found for end in _ends(one)]
        if not ends:
            continue
        with_raw = any(found[2] for _, found, _ in drawn)
        marks = " Vertical lines: noise variance (dashed), floor (dotted)." if lines else ""
        yield f"<h2>{title} after the last step</h2>" + _legend(name for _, name in kinds[: 2 + with_raw])
        cards = [
            _card(run.name, _remark(found) + marks, _histogram_plot(found, verticals, ends, label))
            for run, found, verticals in drawn
        ]
        yield f'<div class="cards">{"".join(cards)}</div>'


def _remark(found: list[Any]) -> str:
    parts = found[1] or {}
    total = sum(parts.get("counts", [])) + parts.get("below", 0) + parts.get("not_positive", 0)
    if not parts.get("not_positive") or not total:
        return ""
    return f"{parts['not_positive'] / total:.1%} of the corrected values are 0 or negative and not shown."


def _ends(one: Any) -> list[float]:
    if not _at(one, "counts"):
        return []
    return [one["edge"], one["edge"] + one["width"] * len(one["counts"])]


def _histogram_plot(found: list[Any], verticals: list[float], ends: list[float], label: str) -> str:
    figure, ax = _axes()
    for i, one in enumerate(found):
        if not _ends(one):
            continue
        total = sum(one["counts"]) + one["below"] + one["not_positive"]
        shares = [count / total for count in one["counts"]]
        edges = [10 ** (one["edge"] + one["width"] * k) for k in range(len(shares) + 1)]
        ax.stairs(shares, edges, color=_SERIES[i], fill=True, alpha=0.25)
        ax.stairs(shares, edges, color=_SERIES[i], linewidth=1.4)
    for x, style in zip(verticals, ("dashed", "dotted"), strict=False):
        if x > 0:
            ax.axvline(x, color=_INK, linewidth=1.0, linestyle=style)
    ax.set_xscale("log")
    ax.set_xlim(10 ** (min(ends) - 0.1), 10 ** (max(ends) + 0.1))
    ax.set_ylim(bottom=0)
    ax.set_xlabel(label)
    ax.set_ylabel("share of coordinates per bin")
    return _svg(figure)


def _axes() -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError(
            "A report needs matplotlib. Install it with: pip install adamas[report]"
        ) from error
    figure = Figure(figsize=(4.8, 2.9), layout="constrained")
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["bottom", "left"]].set_color(_INK)
    ax.tick_params(which="both", colors=_INK, labelsize=9)
    ax.xaxis.label.set_color(_INK)
    ax.yaxis.label.set_color(_INK)
    ax.grid(True, color=_GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    return figure, ax


_PLOTS = itertools.count()


def _svg(figure: Any) -> str:
    """A figure as SVG inside a page: its own ids, the page's colours and font."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "adamas"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    mark = f"plot{next(_PLOTS)}-"
    svg = re.sub(r'\bid="', f'id="{mark}', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{mark}", svg)
    for i, colour in enumerate(_SERIES):
        svg = svg.replace(colour, f"var(--s{i})")
    svg = svg.replace(_INK, "var(--ink)").replace(_GRID, "var(--grid)")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt" ', "", svg, count=1)


# Okabe and Ito's colours, which colour-blind readers can tell apart, and two more; lighter on dark.
_STYLE = """
:root { --ink: #222; --paper: #fff; --card: #f7f7f8; --grid: #dcdcde; --red: #b00020;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #e69f00; --s5: #56b4e9; --s6: #882255;
  --s7: #7a7a1f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e7; --paper: #18181b; --card: #222226;
  --grid: #3a3a40; --red: #ff6b7a; --s0: #4fa8e0; --s1: #f08a4b; --s2: #2cc29b; --s3: #e3a1c6; --s4: #f2b84b;
  --s5: #8ccbf2; --s6: #d070a0; --s7: #c9c96b; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { margin: 2.2rem 0 .4rem; font-size: 1.25rem; }
h3 { margin: 1.2rem 0 .2rem; font-size: 1.05rem; }
.red { color: var(--red); }
.warning { border: 2px solid var(--red); color: var(--red); border-radius: .5rem; padding: .7rem 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--grid); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .8rem; background: var(--card); border-radius: .5rem; max-width: 38rem; }
figcaption { font-size: .86rem; min-height: 3.9em; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .9rem; margin: .2rem 0 .6rem; }
.legend i { display: inline-block; width: 1.8em; border-top-width: 3px; margin: 0 .5em .25em 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; font-size: .9rem; }
dt { opacity: .75; } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; margin-top: .6rem; }
"""

_HTML = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
</body>
</html>
"""
