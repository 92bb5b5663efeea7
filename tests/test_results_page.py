"""The numbers in README.md and docs/results.md match the stored results.

The tests in tests/reproduce/ check that the pages in experiments/ match the stored results. It is enough to
compare with these pages, and with the table in docs/benchmarks.md.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ROWS = {  # name of a row in docs/results.md and README.md -> in experiments/macadam/table1
    "`sgd`": "DP-SGD",
    "`adam`": "DP-Adam",
    "`adam-bc` with a floor of 1e-8": "DP-AdamBC",
    "`adam-bc`, automatic floor": "DP-AdamBC, automatic floor",
    "`macadam` as printed": "DP-MacAdam",
    "`macadam`": "DP-MacAdam, corrected",
    "`macadam-bc` as printed": "DP-MacAdam-BC",
    "`macadam-bc` with a floor of 1e-8": "DP-MacAdam-BC, corrected",
    "`adaclip`": "AdaClip",
}
COLUMNS = [0, 2, 5]  # of that table: sigma = 0.5, 0.7 and 1.0
GRAPH_ROWS = {  # as docs/results.md names a row -> as experiments/adamw/table3 does
    "GCN, `sgd`": "DP-SGD",
    "GCN, `adam`": "DP-Adam",
    "GCN, `adam-bc` with a floor of 2e-6": "DP-AdamBC, floor 2e-6",
    "GCN, `adam-bc`, automatic floor": "DP-AdamBC, automatic floor",
    "GCN, `adamw`": "DP-AdamW",
    "GCN, `adamw-bc`": "DP-AdamW-BC",
    "GCN, `macadam`": "DP-MacAdam",
    "MLP, `adam`": "MLP without the graph, DP-Adam",
    "MLP, `adam-bc`, automatic floor": "MLP without the graph, DP-AdamBC",
}
BEST = "best found: `adam-bc` on wavelet features"


def table(page, title, after="# "):
    """Reads the first table after a heading whose first cell is `title`: first cell -> other cells."""
    text = (ROOT / page).read_text()
    text = text[text.index(after) :]
    start = re.search(rf"^\|\s*{re.escape(title)}\s*\|", text, flags=re.MULTILINE)
    assert start is not None, f"{page} has no table that begins with {title!r}"
    lines = text[start.start() :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def ours(cell):
    """Returns `89.9 ± 0.0` for the cell `89.9 ± 0.0 (90.0 ± 0.1)`."""
    return cell.split(" (")[0]


def published(cell):
    """Returns `90.0` for the cell `89.9 ± 0.0 (90.0 ± 0.1)`."""
    found = re.search(r"\(([\d.]+)", cell)
    return found[1] if found else None


def test_the_mnist_table_matches_the_stored_results():
    stored = table("experiments/macadam/table1/README.md", "")
    shown = table("docs/results.md", "rule")
    assert set(ROWS) < set(shown)
    for name, title in ROWS.items():
        for place, column in enumerate(COLUMNS):
            assert shown[name][2 * place + 1] == ours(stored[title][column]), (name, column)
            there = published(stored[title.removesuffix(", corrected")][column])
            assert shown[name][2 * place] == (there or "–"), (name, column)


def test_the_table_in_the_readme_matches_the_results_page():
    long, short = table("docs/results.md", "rule"), table("README.md", "rule")
    best = table("docs/results.md", "[MNIST](../experiments/best/mnist/README.md)")["here"]
    assert len(short) == 7
    for name, cells in short.items():
        if name in ROWS:
            assert cells == [cell.split(" ± ")[0] for cell in long[name]], name
    assert short[BEST][1::2] == [best[column].split(" ± ")[0] for column in COLUMNS]


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_the_best_rows_match_the_stored_results(data):
    (stored,) = [
        cells
        for name, cells in table(f"experiments/best/{data}/README.md", "").items()
        if name.startswith("DP-AdamBC")
    ]
    title = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[data]
    shown = table("docs/results.md", f"[{title}](../experiments/best/{data}/README.md)")
    for place, cell in enumerate(stored):
        mean, deviation = (float(number) for number in ours(cell).split(" ± "))
        near = [float(number) for number in shown["here"][place].split(" ± ")]
        assert near == pytest.approx([mean, deviation], abs=0.0501)
        assert float(shown["best published"][place]) == pytest.approx(float(published(cell)), abs=0.0501)


def test_the_table_of_graphs_matches_the_stored_results():
    stored = table("experiments/adamw/table3/README.md", "")
    shown = table("docs/results.md", "model and rule")
    assert set(shown) == {"model and rule", "---", *GRAPH_ROWS}
    for name, title in GRAPH_ROWS.items():
        assert shown[name] == [ours(cell).split(" ± ")[0] for cell in stored[title]], name


def test_the_times_in_the_readme_match_the_benchmarks():
    measured = table("docs/benchmarks.md", "", after="## One thread")
    shown = table("README.md", "")
    columns = [0, 1, 2, 4]  # W1, W2, W3, W4
    assert shown["adamas"] == [measured["**adamas**"][column] for column in columns]
    peers = [measured["Opacus 1.6, hooks"], measured["Opacus 1.6, ghost clipping"]]
    faster = [min((peer[column] for peer in peers), key=float) for column in columns]
    assert shown["Opacus 1.6, the faster of its two ways"] == faster
