"""`adamas train --diagnose` and `adamas report`, as a user calls them."""

import builtins
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import adamas.report
from adamas.cli import main
from adamas.experiment import training as experiment
from adamas.report import write_report
from adamas.reproduce import load_table
from tests.support.command_line import call
from tests.support.pages import MEANS, SPENT, TABLE, finished, read_page, write_lines, write_table

QUICK = ["--model", "linear", "--batch-size", "64", "--noise-multiplier", "1.5", "--seed", "1"]
EVIL = '<script>alert("x")</script>&$\\frac{1}'


def lines_of(folder):
    text = (folder / "diagnostics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


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


@pytest.mark.usefixtures("plots")
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


def test_the_default_place_of_a_report_is_the_folder(runs, capsys):
    code, printed, _ = call(capsys, "report", runs / "plain")
    assert code == 0
    assert printed.strip() == str(runs / "plain" / "report.html")
    assert "without --diagnose" in read_page(runs / "plain" / "report.html").text


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
    """All files but one belong to a private run: the page warns."""
    for name in ("result.json", "ledger.json", "diagnostics.jsonl"):
        source = runs / ("raw" if name == kept else "corrected") / name
        (tmp_path / name).write_bytes(source.read_bytes())
    assert write_report([tmp_path], tmp_path / "page.html") == [tmp_path.name]
    assert "NOT PRIVATE" in read_page(tmp_path / "page.html").text


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_everything_is_escaped(runs, tmp_path):
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


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
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


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
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


# --- tables of papers -----------------------------------------------------------------------------------

CELLS = [(row, column) for row in MEANS for column in SPENT]


def read_lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("plots")
def test_a_table_has_its_claim_privacy_numbers_figures_and_settings(capsys, tmp_path):
    folder = write_table(tmp_path)
    code, printed, _ = call(capsys, "report", folder)
    assert code == 0
    assert printed.strip() == str(folder / "report.html")
    page = read_page(folder / "report.html", sortable=True)
    for words in (
        "Accuracy of three rules",
        "Somebody (2026), Table I",
        "The second is best.",
        "adamas reproduce paper/table",
        "A record's influence on a run is bounded by (ε, δ)-differential privacy with ε = 0.70 to 3.00 and "
        "δ = 1e-5 under adding or removing one record: Poisson sampling of 64 of 1,438 records on average, "
        "10 steps, noise multiplier 1 to 4, accountant PLD. By RDP, which is less tight, ε = 0.84 to 3.60.",
        "the 18 runs together spend more",
        "whoever knows a seed can remove the noise",
        "mean ± standard deviation of 2 of 2 seeds",
        "90.1 ± 0.1",  # ours
        "published 92.0 ± 0.1",
        "not in the paper",
        "state",
        "A note about digits.",
        "Ours is better.",
        "DP-AdamBC. Nothing to tune.",
        "rule = adam-bc, rule_options(floor = 1e-6)",
        "18 of 18",
        "11 minutes of one core in all, 36 s a run",
        "x86_64, 2 cores",
        "adamas 0.1.0",
    ):
        assert words in page.text, words
    assert "NOT PRIVATE" not in page.text
    assert "alert" not in dict(page.attributes).values()
    # Against epsilon, the better two once more, the scatter, the state, and three learning curves.
    said = page.figures()
    assert len(said) == 4 + 3
    assert "DP-SGD 88.1% at ε = 0.70, 90.1% at 3.00" in said[0]
    assert "DP-AdamBC" not in said[1]
    assert "in 5 cells" in said[2]
    assert "DP-Adam 8.00" in said[3]
    assert "Learning curves, σ = 1: DP-SGD 45.0% to 90.1%" in said[4]


@pytest.mark.usefixtures("plots")
def test_the_values_to_sort_by_are_the_means_and_the_best_are_bold(tmp_path):
    write_report([write_table(tmp_path, cells=[("sgd", "a"), ("adam", "a")])], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    numbers = re.search(r'<table class="sortable">.*?</table>', text, re.DOTALL)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", numbers)[1:]
    assert [re.findall(r'data-value="([^"]*)"', row)[:2] for row in rows] == [
        ["DP-SGD", "90.1"],
        ["DP-Adam", "91.6"],
        ["DP-AdamBC"],  # a run that is missing has none, and comes last
    ]
    assert re.findall(r'<b class="best">(.*?)</b>', rows[1]) == ["91.6", "92.0", "91.0"]
    assert '<b class="best">' not in rows[2]


@pytest.mark.usefixtures("plots")
def test_points_say_what_they_are_where_the_mouse_is(tmp_path):
    write_report([write_table(tmp_path)], tmp_path / "page.html")
    assert "<title>DP-Adam, σ = 2: ours 90.6, published 91</title>" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_tables_of_an_experiments_folder_have_an_index_and_runs_come_last(runs, capsys, tmp_path):
    root = tmp_path / "experiments"
    write_table(root)
    write_table(root, "other/second", TABLE.replace("three rules", "the same rules"), seeds=1)
    (root / "other" / "third.toml").write_text("not a table, and without results")
    code, printed, _ = call(
        capsys, "report", root, runs / "raw", root / "paper" / "table", "--out", tmp_path / "p"
    )
    assert code == 0
    assert printed.splitlines() == ["NOT PRIVATE: raw", str(tmp_path / "p")]
    page = read_page(tmp_path / "p", sortable=True)
    assert page.text.count("adamas: 2 tables and 1 run") == 2  # title and heading: no table comes twice
    assert ("href", "#table0") in page.attributes
    assert ("href", "#table1") in page.attributes
    assert ("id", "table1") in page.attributes
    places = [page.text.rindex(words) for words in ("the same rules", "three rules", "Over time")]
    assert places == sorted(places)  # in the order of their names: other/second, paper/table
    assert "NOT PRIVATE: raw" in page.text


@pytest.mark.usefixtures("plots")
def test_without_arguments_the_tables_here_are_reported(capsys, monkeypatch, tmp_path):
    write_table(tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    code, printed, _ = call(capsys, "report")
    assert code == 0
    assert printed.strip() == str(Path("experiments") / "report.html")
    assert (
        "Accuracy of three rules" in read_page(tmp_path / "experiments" / "report.html", sortable=True).text
    )
    shutil.rmtree(tmp_path / "experiments")
    code, _, error = call(capsys, "report")
    assert code == 2
    assert "no results in ./experiments" in error


@pytest.mark.usefixtures("plots")
def test_results_elsewhere_find_their_table_by_name(capsys, monkeypatch, tmp_path):
    write_table(tmp_path / "experiments").rename(tmp_path / "table")
    monkeypatch.chdir(tmp_path)
    code, _, error = call(capsys, "report", tmp_path / "table")
    assert code == 2
    assert "a folder called like a table (paper/table)" in error
    (tmp_path / "reproduced" / "paper").mkdir(parents=True)
    (tmp_path / "table").rename(tmp_path / "reproduced" / "paper" / "table")
    code, _, _ = call(capsys, "report", tmp_path / "reproduced", "--out", tmp_path / "page.html")
    assert code == 0
    assert "Accuracy of three rules" in read_page(tmp_path / "page.html", sortable=True).text


@pytest.mark.usefixtures("plots")
def test_everything_in_a_table_is_escaped(tmp_path):
    values = {"title": EVIL, "source": EVIL, "claim": EVIL, "notes": [EVIL], "findings": [EVIL]}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()) + "seeds = 1\n"
    text += f"""
measures = ["state"]
[settings]
data = "digits"
model = "linear"
accountant = {json.dumps(EVIL)}
batch_size = 64
delta = 1e-5
steps = 10
[columns."<b>"]
title = {json.dumps(EVIL)}
settings = {{ noise_multiplier = 1.0 }}
[rows."<i>"]
title = {json.dumps(EVIL)}
note = {json.dumps(EVIL)}
settings = {{ rule = "sgd", rule_options = {{ lr = {json.dumps(EVIL)} }} }}
published = [[90.0, 0.1]]
"""
    folder = write_table(
        tmp_path, "a<b>&'\"$x^$/t<u>", text, seeds=1, private=False, epsilon="inf", machine=EVIL, version=EVIL
    )
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert not {"b>", "i", "u"} & set(page.tags)
    assert page.text.count(EVIL) > 12
    assert f"lr = {EVIL}" in page.text


@pytest.mark.usefixtures("plots")
def test_a_table_that_is_not_finished_says_how_far_it_is(tmp_path):
    folder = write_table(tmp_path, cells=CELLS[:2], seeds=1)
    table = load_table(folder.with_suffix(".toml"))
    write_lines(folder, [*read_lines(folder), finished(table, "sgd", "a", 1)])
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"row": "sgd", "col')  # being written
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    for words in ("3 of 18", "1 to 2 of 2 seeds", "1 seed", "2 seeds", "–", "ε = 1.50 to 3.00"):
        assert words in page.text, words


def test_a_table_without_a_finished_run_has_no_figures(tmp_path):
    folder = write_table(tmp_path, seeds=0)
    assert write_report([folder], tmp_path / "page.html") == []
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "No run is finished yet." in page.text
    assert "0 of 18" in page.text
    assert "published 92.0 ± 0.1" in page.text
    assert page.figures() == []


@pytest.mark.usefixtures("plots")
def test_one_seed_has_no_deviation_and_one_column_no_axis_of_epsilon(tmp_path):
    folder = write_table(tmp_path, cells=[("sgd", "b"), ("bc", "b")], seeds=1)
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "one of 2 seeds" in page.text
    assert "One seed." in page.text
    assert "89.0 ±" not in page.text.replace("published 89.0 ±", "")
    assert "Accuracy, σ = 2: DP-SGD 89.0%, DP-AdamBC 59.0%." in page.figures()


@pytest.mark.usefixtures("plots")
def test_columns_that_differ_in_more_than_privacy_have_a_figure_each(tmp_path):
    text = TABLE.replace("noise_multiplier = 4.0", 'noise_multiplier = 4.0, model = "mlp"')
    write_report([write_table(tmp_path, text=text)], tmp_path / "page.html")
    said = read_page(tmp_path / "page.html", sortable=True).figures()
    assert [words[:16] for words in said[:3]] == [f"Accuracy, σ = {n}:" for n in (1, 2, 4)]


@pytest.mark.usefixtures("plots")
def test_a_table_without_published_numbers_is_not_compared(tmp_path):
    text = re.sub(r"published(_epsilon)? = .*", "", TABLE)
    write_report([write_table(tmp_path, text=text)], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "Against" not in page.text
    assert "published" not in page.text
    assert "the paper has" not in page.text


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
def test_a_row_that_is_not_private_is_marked_loudly(capsys, tmp_path, change):
    folder = write_table(tmp_path)
    lines = read_lines(folder)
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
    assert "91.6</b>" not in (tmp_path / "page.html").read_text()  # the best, but not among private ones
    assert "bounded by" not in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_moments_in_the_results_are_drawn(runs, tmp_path):
    folder = write_table(tmp_path, cells=[("sgd", "a"), ("bc", "a"), ("bc", "c")], seeds=1)
    moments = lines_of(runs / "corrected")[-1]
    lines = read_lines(folder)
    write_lines(folder, [line | ({"moments": moments} if line["row"] == "bc" else {}) for line in lines])
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "Moments of the optimizers" in page.text
    assert f"{moments['overall']['on_floor']:.4g}" in page.text
    said = page.figures()
    assert len([words for words in said if words.startswith("DP-AdamBC: histogram of the second")]) == 2
    assert len([words for words in said if words.startswith("DP-AdamBC: histogram of the |update|")]) == 2


@pytest.mark.usefixtures("plots")
def test_epsilon_is_never_rounded_below_itself(tmp_path):
    folder = write_table(tmp_path, epsilon={"pld": 0.78401, "rdp": None})
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "ε = 0.79 and δ = 1e-5" in page.text
    assert "0.78 " not in page.text
    assert "By RDP" not in page.text  # it has no bound


@pytest.mark.usefixtures("plots")
def test_each_delta_has_its_own_guarantee(tmp_path):
    text = TABLE.replace("{ noise_multiplier = 4.0 }", "{ noise_multiplier = 4.0, delta = 1e-4 }")
    folder = write_table(tmp_path, text=text)
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["delta"] = 1e-4 if line["column"] == "c" else 1e-5
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([folder], tmp_path / "page.html")
    text = read_page(tmp_path / "page.html", sortable=True).text
    assert "ε = 1.50 to 3.00 and δ = 1e-5" in text
    assert "ε = 0.70 and δ = 0.0001" in text


@pytest.mark.usefixtures("plots")
def test_accuracy_on_held_out_examples_is_called_validation_accuracy(tmp_path):
    folder = write_table(tmp_path, text=TABLE.replace('"digits"', '"digits/validation"'))
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "Validation accuracy in percent" in page.text
    assert not [words for words in page.figures() if "test accuracy" in words]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"data": "other"}}, "is from another version of paper/table"),
        ({"column": "z"}, "is from another version of paper/table"),
        ({"test_accuracy": None}, "line 1, is not a result"),
    ],
)
def test_results_that_do_not_belong_to_the_table_are_refused(capsys, tmp_path, change, message):
    folder = write_table(tmp_path)
    lines = read_lines(folder)
    write_lines(folder, [lines[0] | change, *lines[1:]])
    code, _, error = call(capsys, "report", folder)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_an_experiments_folder_without_results_says_how_to_make_some(capsys, tmp_path):
    shutil.rmtree(write_table(tmp_path))
    code, _, error = call(capsys, "report", tmp_path)
    assert code == 2
    assert "adamas reproduce paper/table" in error


# --- colours --------------------------------------------------------------------------------------------


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """As the Web Content Accessibility Guidelines define it."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_colours():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_curves_stand_out_in_both_schemes(scheme):
    style = (Path(adamas.report.__file__).parent / "style.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", part)) for part in style.split("@media")[:2])
    assert light.keys() == dark.keys()
    colours = light if scheme == "light" else dark
    for name in ("ink", "muted", "link", "red"):
        for ground in ("paper", "card"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for i in range(10):
        assert contrast(colours[f"s{i}"], colours["card"]) >= 3, i
