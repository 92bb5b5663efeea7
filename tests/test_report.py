"""`adamas train --diagnose` and `adamas report`, as a user calls them."""

import builtins
import json
import math
import re
from html.parser import HTMLParser

import pytest
import torch
from safetensors.torch import load_file

from adamas import experiment
from adamas.cli import main
from adamas.report import write_report

QUICK = ["--model", "linear", "--batch-size", "64", "--noise-multiplier", "1.5", "--seed", "1"]
VOID = {"meta", "br", "path", "use", "rect"}


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def lines_of(folder):
    text = (folder / "diagnostics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.depth = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.depth.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.depth.pop() == tag

    def handle_data(self, data):
        if self.depth[-1:] != ["style"]:
            self.text += data


def read_page(path):
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
    assert "script" not in page.tags
    assert "#0000" not in text  # all colours are the page's
    assert "#0001" not in text
    return page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of three runs, one of them raw, made once."""
    root = tmp_path_factory.mktemp("runs")
    for name, options in {
        "corrected": ["--rule", "adam-bc", "--steps", "12", "--diagnose"],
        "sgd": ["--rule", "sgd", "--steps", "5", "--diagnose-every", "2"],
        "raw": ["--rule", "adam-bc", "--steps", "12", "--diagnose", "--raw"],
        "plain": ["--rule", "adam-bc", "--steps", "12"],
    }.items():
        with pytest.raises(SystemExit) as stop:
            main(["train", *QUICK, *options, "--out", str(root / name)])
        assert stop.value.code == 0
    return root


def test_train_writes_a_line_per_step_of_a_short_run_and_histograms_at_the_end(runs):
    lines = lines_of(runs / "corrected")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert ["histograms" in line for line in lines] == [False] * 11 + [True]
    assert all(line["private"] is True for line in lines)
    assert not any("raw" in line for line in lines)
    assert lines[-1]["overall"]["coordinates"] == 650
    assert list(lines[0]["layers"]) == ["1.weight", "1.bias"]
    assert sum(lines[-1]["histograms"]["v_hat"]["counts"]) + lines[-1]["histograms"]["v_hat"]["below"] == 650


def test_the_distance_of_lines_can_be_chosen_and_the_last_step_is_among_them(runs):
    assert [line["step"] for line in lines_of(runs / "sgd")] == [2, 4, 5]


def test_a_long_run_has_fifty_lines_at_most(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "_LINES", 5)
    settings = experiment.Settings(
        data="digits", model="linear", rule="sgd", batch_size=8, delta=1e-5, noise_multiplier=9.0, steps=12
    )
    experiment.train_and_save(settings, tmp_path / "run", diagnose=True)
    assert [line["step"] for line in lines_of(tmp_path / "run")] == [3, 6, 9, 12]


def test_diagnosing_changes_neither_weights_nor_ledger(runs):
    models = [load_file(runs / name / "model.safetensors") for name in ("corrected", "plain", "raw")]
    for other in models[1:]:
        assert all(torch.equal(models[0][key], other[key]) for key in models[0])
    ledgers = [(runs / name / "ledger.json").read_text() for name in ("corrected", "plain", "raw")]
    assert ledgers[0] == ledgers[1]
    assert ledgers[0] != ledgers[2]


def test_every_output_of_a_raw_run_says_that_it_is_not_private(runs, capsys, tmp_path):
    result = json.loads((runs / "raw" / "result.json").read_text())
    assert result["private"] is False
    assert result["epsilon"] == "inf"
    assert "NOT PRIVATE" in result["privacy"]
    assert result["settings"]["raw"] is True
    lines = lines_of(runs / "raw")
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


def test_a_run_that_dies_leaves_whole_lines(monkeypatch, tmp_path):
    settings = experiment.Settings(
        data="digits", model="linear", rule="adam", batch_size=64, delta=1e-5, noise_multiplier=9.0, steps=9
    )
    original = experiment.PrivateRun.diagnostics

    def dying(self, **options):
        if self.steps_done == 4:
            raise KeyboardInterrupt
        return original(self, **options)

    monkeypatch.setattr(experiment.PrivateRun, "diagnostics", dying)
    with pytest.raises(KeyboardInterrupt):
        experiment.train_and_save(settings, tmp_path / "run", diagnose=True)
    assert [line["step"] for line in lines_of(tmp_path / "run")] == [1, 2, 3]
    with pytest.raises(ValueError, match=r"diagnostics\.jsonl"):
        experiment.train_and_save(settings, tmp_path / "run", diagnose=True)
    # What is there can be drawn, also with half a line behind it.
    with (tmp_path / "run" / "diagnostics.jsonl").open("a") as file:
        file.write('{"step": 4, "over')
    assert write_report([tmp_path / "run"], tmp_path / "page.html") == []
    assert "did not finish" in read_page(tmp_path / "page.html").text


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


def test_the_default_place_of_a_report_is_the_folder(runs, capsys):
    code, printed, _ = call(capsys, "report", runs / "plain")
    assert code == 0
    assert printed.strip() == str(runs / "plain" / "report.html")
    assert "without --diagnose" in read_page(runs / "plain" / "report.html").text


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


@pytest.mark.parametrize("kept", ["result.json", "ledger.json", "diagnostics.jsonl"])
def test_one_file_is_enough_to_tell_that_a_run_is_not_private(runs, tmp_path, kept):
    """Files of a private run, but for one: whoever mixes them up is told."""
    for name in ("result.json", "ledger.json", "diagnostics.jsonl"):
        source = runs / ("raw" if name == kept else "corrected") / name
        (tmp_path / name).write_bytes(source.read_bytes())
    assert write_report([tmp_path], tmp_path / "page.html") == [tmp_path.name]
    assert "NOT PRIVATE" in read_page(tmp_path / "page.html").text


def test_everything_is_escaped(runs, tmp_path):
    evil = '<script>alert("x")</script>&$\\frac{1}'
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
    lines = lines_of(runs / "raw")
    for line in lines:
        line["layers"] = {evil: line["layers"]["1.weight"], "_hidden": line["layers"]["1.bias"]}
    (folder / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert page.tags.count("title") == 1
    assert evil in page.text
    assert "_hidden" in page.text
    assert folder.name in page.text


def test_values_of_a_wrong_kind_are_left_out(runs, tmp_path):
    lines = lines_of(runs / "corrected")[-2:]
    lines[0]["overall"] = None
    lines[1]["overall"] |= {"on_floor": "many", "noise_share": True, "effective_lr": 3, "center_norm": None}
    lines[1]["layers"] = {}
    (tmp_path / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([tmp_path], tmp_path / "page.html")
    text = read_page(tmp_path / "page.html").text
    assert "On the floor" not in text
    assert "Size of the update" in text


def test_many_layers_are_cut_to_the_largest(runs, tmp_path):
    line = lines_of(runs / "corrected")[-1]
    line["layers"] = {f"layer{i}": line["layers"]["1.bias"] | {"coordinates": i + 1} for i in range(40)}
    (tmp_path / "diagnostics.jsonl").write_text(json.dumps(line) + "\n")
    write_report([tmp_path], tmp_path / "page.html")
    text = read_page(tmp_path / "page.html").text
    assert "24 largest of 40" in text
    assert "layer39" in text
    assert "layer15" not in text


def test_folders_of_one_name_are_told_apart_by_their_paths(runs, tmp_path):
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
def test_a_folder_that_cannot_be_read_is_one_line_and_exit_code_2(capsys, tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code, printed, error = call(capsys, "report", tmp_path)
    assert code == 2
    assert printed == ""
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "report.html").exists()


def test_bad_options_are_refused_and_leave_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, message in (
        (["--raw"], "--diagnose with --raw"),
        (["--diagnose-every", "0"], "diagnose_every=0"),
        (["--diagnose", "--diagnose-every", "-3"], "diagnose_every=-3"),
    ):
        code, _, error = call(capsys, "train", *QUICK, "--steps", "2", *options)
        assert code == 2
        assert message in error
    code, _, error = call(capsys, "report")
    assert code == 2
    assert list(tmp_path.iterdir()) == []


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
