"""`adamas report` on runs: one page that compares them."""

import builtins
import json

import pytest

from adamas.report import write_report
from tests.support.command_line import call
from tests.support.pages import read_page
from tests.support.report_files import EVIL, diagnostics_of


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_a_report_compares_two_runs_on_one_page(runs, capsys, tmp_path):
    out = tmp_path / "page.html"
    code, printed, _ = call(capsys, "report", runs / "corrected", runs / "sgd", "--out", out)
    assert code == 0
    assert printed.strip() == str(out)
    page = read_page(out)
    result = json.loads((runs / "corrected" / "result.json").read_text())
    for words in (
        "corrected",
        "sgd",
        f"{result['epsilon']:.4g}",
        f"{result['test_accuracy']:.2%}",
        "differentially private under adding or removing one record",
        "whoever knows it can remove the noise",
        "noise_multiplier",
        "PoissonSampled(sampling_probability=",
        "share of coordinates",
        "On the floor",
        "Signal to noise",
        "Effective learning rate",
        "1.weight",
        "Second moment",
    ):
        assert words in page.text, words
    assert "NOT PRIVATE" not in page.text
    # 6 panels of both runs, 2 histograms of one, 5 panels by layer of one: SGD has no moments.
    assert page.tags.count("svg") == 6 + 2 + 5


def test_a_report_is_written_to_the_folder_by_default(runs, capsys):
    code, printed, _ = call(capsys, "report", runs / "plain")
    assert code == 0
    assert printed.strip() == str(runs / "plain" / "report.html")
    assert "without --diagnose" in read_page(runs / "plain" / "report.html").text


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_all_texts_of_a_run_are_escaped(runs, tmp_path):
    evil = EVIL
    folder = tmp_path / "a<b>&'\"$x^$"
    folder.mkdir()
    result = json.loads((runs / "raw" / "result.json").read_text())
    result |= {"privacy": evil, "note": evil, "engine": evil}
    result["settings"] |= {
        "rule": evil,
        "data": evil,
        "model": evil,
        evil: evil,
        "rule_options": {evil: [evil]},
    }
    (folder / "result.json").write_text(json.dumps(result))
    event = {"kind": evil, evil: [evil, {"kind": evil}]}
    ledger = {"relation": evil, "entries": [{"event": event, "count": 2}], "open": None}
    (folder / "ledger.json").write_text(json.dumps(ledger))
    lines = diagnostics_of(runs / "raw")
    for line in lines:
        line["layers"] = {evil: line["layers"]["1.weight"], "_hidden": line["layers"]["1.bias"]}
    (folder / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert page.tags.count("title") == 1
    assert evil in page.text
    assert "_hidden" in page.text
    assert folder.name in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_values_of_a_wrong_type_are_left_out(runs, tmp_path):
    lines = diagnostics_of(runs / "corrected")[-2:]
    lines[0]["overall"] = None
    lines[1]["overall"] |= {"on_floor": "many", "noise_share": True, "effective_lr": 3, "center_norm": None}
    lines[1]["layers"] = {}
    (tmp_path / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([tmp_path], tmp_path / "page.html")
    text = read_page(tmp_path / "page.html").text
    assert "On the floor" not in text
    assert "Size of the update" in text


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_only_the_largest_of_many_layers_are_shown(runs, tmp_path):
    line = diagnostics_of(runs / "corrected")[-1]
    line["layers"] = {f"layer{i}": line["layers"]["1.bias"] | {"coordinates": i + 1} for i in range(40)}
    (tmp_path / "diagnostics.jsonl").write_text(json.dumps(line) + "\n")
    write_report([tmp_path], tmp_path / "page.html")
    text = read_page(tmp_path / "page.html").text
    assert "24 largest of 40" in text
    assert "layer39" in text
    assert "layer15" not in text


def test_folders_of_the_same_name_are_shown_with_their_paths(runs, tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent / "run").mkdir(parents=True)
        copied = (runs / "sgd" / "result.json").read_bytes()
        (tmp_path / parent / "run" / "result.json").write_bytes(copied)
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    write_report(folders, tmp_path / "page.html")
    text = read_page(tmp_path / "page.html").text
    assert all(str(folder) in text for folder in folders)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither result.json nor diagnostics.jsonl"),
        ({"result.json": "{"}, "to hold JSON"),
        ({"result.json": "[1]"}, "JSON object, got list"),
        ({"result.json": "{}", "diagnostics.jsonl": "{}\nnonsense\n"}, "diagnostics.jsonl to hold JSON"),
        ({"result.json": "{}", "ledger.json": "3"}, "ledger.json to hold a JSON object"),
    ],
)
def test_a_folder_that_cannot_be_read_gives_one_line_and_exit_code_2(capsys, tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code, printed, error = call(capsys, "report", tmp_path)
    assert code == 2
    assert printed == ""
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "report.html").exists()


def test_without_matplotlib_the_error_says_what_to_install(runs, capsys, monkeypatch, tmp_path):
    original = builtins.__import__

    def missing(name, *arguments, **options):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    code, _, error = call(capsys, "report", runs / "corrected", "--out", tmp_path / "page.html")
    assert code == 2
    assert "pip install adamas[report]" in error
    assert not (tmp_path / "page.html").exists()
