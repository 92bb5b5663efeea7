"""The Markdown page of a table: means, deviations, published values and the privacy of the runs."""

import re
import statistics

import pytest

from adamas.reproduce import Results, load_table, reproduce
from adamas.reproduce.commands import make_table
from adamas.reproduce.render import markdown, summarize
from adamas.reproduce.table import Cell
from tests.support.small_tables import TABLE, write


def test_the_page_has_means_deviations_and_published_values(tmp_path, table):
    with Results(tmp_path / "results.jsonl", table) as kept:
        reproduce(kept)
    values = [100 * line["test_accuracy"] for line in kept.find(Cell("sgd", "low"))]
    expected = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} (80.5 ± 0.1)"
    page = markdown(kept)
    assert f"| DP-SGD | {expected} |" in page
    assert "**Claim.** Adam is better." in page
    assert "adamas reproduce paper/table --jobs 2   # 8 runs, about" in page
    assert "| **corrected** |" in page
    spent = float(re.search(r"ε \(PLD\) \| ([0-9.]+) \|", page)[1])
    assert 0 <= spent - kept.lines[0]["epsilon"]["pld"] <= 1e-3
    assert "| ε, published | 1.50 | – |" in page
    assert "Seeds 0, 1" in page


def test_runs_that_are_not_private_are_marked(tmp_path):
    text = TABLE.replace("delta = 1e-5", "delta = 1e-5\nraw = true").replace(
        "evaluations = 2", "histograms = true"
    )
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["adam"], columns=["low"], seeds=1)
    (line,) = kept.lines
    assert line["private"] is False
    assert line["epsilon"] == "inf"
    page = markdown(kept)
    assert f"| DP-Adam | {100 * line['test_accuracy']:.1f} NOT PRIVATE | – |" in page
    assert "| ε (PLD) | – | – |" in page
    seen = line["moments"]["raw"]["statistics"]["private m"]
    assert f"| m̂ | {seen['min']:.3g} | {seen['q1']:.3g} |" in page


def test_validation_accuracy_is_not_called_test_accuracy(tmp_path):
    text = TABLE.replace('data = "digits"', 'data = "digits/validation"')
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["sgd"], columns=["low"], seeds=1)
    assert "Validation accuracy in percent" in markdown(kept)
    assert "est accuracy" not in markdown(kept)


def test_each_column_shows_its_delta(tmp_path):
    text = TABLE.replace("{ noise_multiplier = 2.0 }", "{ noise_multiplier = 2.0, delta = 1e-4 }")
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["sgd"], seeds=1)
    assert "| δ | 1e-05 | 0.0001 |" in markdown(kept)
    assert "ε at δ" not in markdown(kept)


def test_the_noise_of_a_row_is_listed_in_the_order_of_the_columns(tmp_path):
    text = TABLE.replace("evaluations = 2", 'evaluations = 2\nmeasures = ["noise"]')
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["sgd"], columns=["high"], seeds=1)
        reproduce(kept, rows=["sgd"], columns=["low"], seeds=1)
    page = markdown(kept)
    assert "| σ = 2 | noise multiplier |" in page
    assert re.search(r"\| DP-SGD \|.*\| 1\.00 / 2\.00 \|\n", page)
    assert re.search(r"\| DP-Adam \| – \| – \| – \|\n", page)


def test_published_numbers_keep_their_digits(tmp_path):
    table = load_table(write(tmp_path, TABLE.replace("[[80.5, 0.1], []]", "[[80.50, 0.31], [90.0]]")))
    with Results(tmp_path / "results.jsonl", table) as kept:
        reproduce(kept, rows=["sgd"], seeds=1)
    assert "(80.50 ± 0.31)" in markdown(kept)
    assert "(90.00)" in markdown(kept)
    assert summarize(kept.find(Cell("sgd", "low"))).deviation is None


def test_an_interrupted_table_still_gets_its_page(tmp_path, monkeypatch):
    path = write(tmp_path)

    def interrupted(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_table(path.parent.parent, "paper/table", tmp_path / "out", progress=interrupted)
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 2
    assert "DP-SGD" in (tmp_path / "out" / "README.md").read_text()
