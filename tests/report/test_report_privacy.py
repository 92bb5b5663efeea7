"""Privacy in reports: epsilon is never rounded down, and runs without a guarantee are marked."""

import json
import math

import pytest

from adamas.report import write_report
from tests.support.command_line import call
from tests.support.pages import TABLE, read_page, write_lines, write_table
from tests.support.report_files import QUICK, diagnostics_of, results_of


def test_every_output_of_a_raw_run_says_that_it_is_not_private(runs, capsys, tmp_path):
    result = json.loads((runs / "raw" / "result.json").read_text())
    assert result["private"] is False
    assert result["epsilon"] == "inf"
    assert "NOT PRIVATE" in result["privacy"]
    assert result["settings"]["raw"] is True
    lines = diagnostics_of(runs / "raw")
    assert all(line["private"] is False and "raw" in line for line in lines)
    assert "histograms" in lines[-1]["raw"]
    options = [*QUICK, "--steps", "2", "--diagnose", "--raw", "--out", tmp_path / "again"]
    code, printed, _ = call(capsys, "train", *options)
    assert code == 0
    assert "NOT PRIVATE" in printed
    assert "inf" in printed
    private = json.loads((runs / "corrected" / "result.json").read_text())
    assert private["private"] is True
    assert math.isfinite(private["epsilon"])


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_a_report_marks_a_raw_run_in_red(runs, capsys, tmp_path):
    out = tmp_path / "page.html"
    code, printed, _ = call(capsys, "report", runs / "corrected", runs / "raw", "--out", out)
    assert code == 0
    assert "NOT PRIVATE: raw" in printed
    page = read_page(out)
    assert "NOT PRIVATE: raw" in page.text
    assert "NOT PRIVATE: corrected" not in page.text
    assert "WITHOUT NOISE" in page.text
    assert ("class", "warning") in page.attributes
    assert ("class", "red") in page.attributes


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
@pytest.mark.parametrize("kept", ["result.json", "ledger.json", "diagnostics.jsonl"])
def test_one_file_is_enough_to_tell_that_a_run_is_not_private(runs, tmp_path, kept):
    """One file is of the raw run, the others are of a private one: the page warns."""
    for name in ("result.json", "ledger.json", "diagnostics.jsonl"):
        source = runs / ("raw" if name == kept else "corrected") / name
        (tmp_path / name).write_bytes(source.read_bytes())
    assert write_report([tmp_path], tmp_path / "page.html") == [tmp_path.name]
    assert "NOT PRIVATE" in read_page(tmp_path / "page.html").text


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
@pytest.mark.parametrize(
    "change",
    [
        {"private": False, "epsilon": "inf"},
        {"epsilon": "inf"},
        {"noise_multiplier": 0.0},
        {"moments": {"private": False}},
    ],
)
def test_a_row_that_is_not_private_is_marked_in_the_page_and_the_output(capsys, tmp_path, change):
    folder = write_table(tmp_path)
    lines = results_of(folder)
    assert (lines[0]["row"], lines[0]["column"]) == ("sgd", "a")
    write_lines(folder, [lines[0] | change, *lines[1:]])
    code, printed, _ = call(capsys, "report", folder)
    assert code == 0
    assert "NOT PRIVATE: paper/table, DP-SGD" in printed
    page = read_page(folder / "report.html", sortable=True)
    assert "NOT PRIVATE: paper/table, DP-SGD" in page.text
    assert "NOT PRIVATE: paper/table, DP-Adam" not in page.text
    assert ("class", "warning") in page.attributes
    assert ("class", "tag red") in page.attributes  # in the cell


@pytest.mark.usefixtures("plots")
def test_a_table_of_runs_that_are_not_private_promises_nothing(tmp_path):
    write_report([write_table(tmp_path, private=False, epsilon="inf")], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "None of the runs is private." in page.text
    assert "91.6</b>" not in (tmp_path / "page.html").read_text()  # the best accuracy is bold only if private
    assert "bounded by" not in page.text


@pytest.mark.usefixtures("plots")
def test_epsilon_is_never_rounded_down(tmp_path):
    folder = write_table(tmp_path, epsilon={"pld": 0.78401, "rdp": None})
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "ε = 0.79 and δ = 1e-5" in page.text
    assert "0.78 " not in page.text
    assert "By RDP" not in page.text  # RDP gives no bound here


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_each_delta_has_its_own_guarantee(tmp_path):
    text = TABLE.replace("{ noise_multiplier = 4.0 }", "{ noise_multiplier = 4.0, delta = 1e-4 }")
    folder = write_table(tmp_path, text=text)
    lines = [line | {"delta": 1e-4 if line["column"] == "c" else 1e-5} for line in results_of(folder)]
    write_lines(folder, lines)
    write_report([folder], tmp_path / "page.html")
    text = read_page(tmp_path / "page.html", sortable=True).text
    assert "ε = 1.50 to 3.00 and δ = 1e-5" in text
    assert "ε = 0.70 and δ = 0.0001" in text
