"""Reads pages of `adamas report`, and writes tables with made-up results for it to show.

`read_page` checks what every page promises: no network, no foreign script, unique ids, headings in order.
"""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser

from adamas.reproduce import Cell, load_table
from adamas.reproduce.results import plain_settings, resolved_options

VOID = {"meta", "br", "path", "use", "rect"}


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.depth, self.elements = [], [], "", [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.depth.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.depth.pop() == tag

    def handle_data(self, data):
        if self.depth[-1:] not in (["style"], ["script"]):
            self.text += data

    def figures(self):
        """Returns the description of each figure for screen readers."""
        drawings = [attributes for tag, attributes in self.elements if tag == "svg"]
        return [one["aria-label"] for one in drawings if one.get("aria-hidden") != "true"]


def read_page(path, *, sortable=False):
    """Reads a page, and checks what every page promises."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.depth == []
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for name, value in page.attributes:
        if name in ("href", "xlink:href", "src"):
            assert value.startswith("#")  # no network
            assert value[1:] in ids
    for target in re.findall(r"url\(#([^)]+)\)", text):
        assert target in ids
    assert page.tags.count("script") == sortable
    policy = re.search(r'Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    if sortable:
        script = re.search(r"<script>(.*?)</script>\n</body>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert policy.endswith(f"script-src 'sha256-{digest}'")
    else:
        assert "script-src" not in policy
    assert "#0000" not in text  # placeholders of colors are all replaced
    assert "#0001" not in text
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert all(words.strip(" .") for words in page.figures())
    return page


TABLE = """
title = "Accuracy of three rules"
source = "Somebody (2026), Table I"
claim = "The second is best."
seeds = 2
measures = ["state"]
notes = ["A note about `digits`."]
findings = ["**Ours** is better."]

[settings]
data = "digits"
model = "linear"
batch_size = 64
delta = 1e-5
steps = 10

[columns.a]
title = "σ = 1"
published_epsilon = 3.0
settings = { noise_multiplier = 1.0 }

[columns.b]
title = "σ = 2"
settings = { noise_multiplier = 2.0 }

[columns.c]
title = "σ = 4"
settings = { noise_multiplier = 4.0 }

[rows.sgd]
title = "DP-SGD"
settings = { rule = "sgd" }
published = [[90.0, 0.1], [89.0, 0.2], [88.0, 0.3]]

[rows.adam]
title = "DP-Adam"
settings = { rule = "adam" }
published = [[92.0, 0.1], [91.0, 0.2], []]

[rows.bc]
title = "DP-AdamBC"
form = "ours"
settings = { rule = "adam-bc", rule_options = { floor = 1e-6 } }
note = "Nothing to tune."
"""


MEANS = {"sgd": 0.9, "adam": 0.915, "bc": 0.6}
SPENT = {"a": 3.0, "b": 1.5, "c": 0.7}


def finished(table, row, column, seed, **changes):
    """Makes a line of results.jsonl as `adamas reproduce` writes it."""
    chosen = table.cell_settings(Cell(row, column), seed)
    accuracy = MEANS.get(row, 0.5) - 0.01 * list(table.columns).index(column) + 0.002 * seed
    epsilon = SPENT.get(column, 2.0)
    return {
        "row": row,
        "column": column,
        "seed": seed,
        "settings": plain_settings(chosen),
        "options": resolved_options(chosen),
        "private": True,
        "epsilon": {"pld": epsilon, "rdp": 1.2 * epsilon},
        "delta": 1e-5,
        "noise_multiplier": chosen.noise_multiplier,
        "sampling_rate": 64 / 1438,
        "steps": 10,
        "test_accuracy": accuracy,
        "curve": [[5, accuracy / 2], [10, accuracy]],
        "parameters": 650,
        "state_bytes_per_parameter": 0.0 if row == "sgd" else 8.0,
        "engine": "bookkeeping",
        "seconds": 36.0,
        "version": "0.1.0",
        "machine": "x86_64, 2 cores",
    } | changes


def write_table(root, name="paper/table", text=TABLE, cells=None, seeds=2, **changes):
    """Writes a table's TOML file and its results below `root`, and returns the folder of the results."""
    toml = root / f"{name}.toml"
    toml.parent.mkdir(parents=True, exist_ok=True)
    toml.write_text(text, encoding="utf-8")
    table = load_table(toml)
    wanted = [(cell.row, cell.column) for cell in table.cells()] if cells is None else cells
    lines = [finished(table, *cell, seed, **changes) for seed in range(seeds) for cell in wanted]
    folder = toml.with_suffix("")
    folder.mkdir()
    write_lines(folder, lines)
    return folder


def write_lines(folder, lines):
    """Writes results.jsonl."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
