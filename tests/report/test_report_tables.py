"""`adamas report` on the tables of papers: claim, numbers, figures and settings."""

import json
import re
import shutil
from pathlib import Path

import pytest

from adamas.report import write_report
from adamas.reproduce import load_table
from tests.support.command_line import call
from tests.support.pages import MEANS, SPENT, TABLE, finished, read_page, write_lines, write_table
from tests.support.report_files import EVIL, diagnostics_of, results_of

CELLS = [(row, column) for row in MEANS for column in SPENT]


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
    # Accuracy against epsilon, the same for the better two, the scatter, the state, three learning curves.
    said = page.figures()
    assert len(said) == 4 + 3
    assert "DP-SGD 88.1% at ε = 0.70, 90.1% at 3.00" in said[0]
    assert "DP-AdamBC" not in said[1]
    assert "in 5 cells" in said[2]
    assert "DP-Adam 8.00" in said[3]
    assert "Learning curves, σ = 1: DP-SGD 45.0% to 90.1%" in said[4]


@pytest.mark.usefixtures("plots")
def test_cells_sort_by_their_means_and_the_best_are_bold(tmp_path):
    write_report([write_table(tmp_path, cells=[("sgd", "a"), ("adam", "a")])], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    numbers = re.search(r'<table class="sortable">.*?</table>', text, re.DOTALL)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", numbers)[1:]
    assert [re.findall(r'data-value="([^"]*)"', row)[:2] for row in rows] == [
        ["DP-SGD", "90.1"],
        ["DP-Adam", "91.6"],
        ["DP-AdamBC"],  # a missing run has no value, and comes last
    ]
    assert re.findall(r'<b class="best">(.*?)</b>', rows[1]) == ["91.6", "92.0", "91.0"]
    assert '<b class="best">' not in rows[2]


@pytest.mark.usefixtures("plots")
def test_points_have_tooltips(tmp_path):
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
    assert page.text.count("adamas: 2 tables and 1 run") == 2  # title and heading; no table is listed twice
    assert ("href", "#table0") in page.attributes
    assert ("href", "#table1") in page.attributes
    assert ("id", "table1") in page.attributes
    places = [page.text.rindex(words) for words in ("the same rules", "three rules", "Over time")]
    assert places == sorted(places)  # sorted by name: other/second, paper/table
    assert "NOT PRIVATE: raw" in page.text


@pytest.mark.usefixtures("plots")
def test_without_arguments_the_experiments_folder_is_reported(capsys, monkeypatch, tmp_path):
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
def test_all_texts_of_a_table_are_escaped(tmp_path):
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
def test_an_unfinished_table_shows_its_progress(tmp_path):
    folder = write_table(tmp_path, cells=CELLS[:2], seeds=1)
    table = load_table(folder.with_suffix(".toml"))
    write_lines(folder, [*results_of(folder), finished(table, "sgd", "a", 1)])
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"row": "sgd", "col')  # a line that is being written
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
def test_moments_in_the_results_are_drawn(runs, tmp_path):
    folder = write_table(tmp_path, cells=[("sgd", "a"), ("bc", "a"), ("bc", "c")], seeds=1)
    moments = diagnostics_of(runs / "corrected")[-1]
    lines = results_of(folder)
    write_lines(folder, [line | ({"moments": moments} if line["row"] == "bc" else {}) for line in lines])
    write_report([folder], tmp_path / "page.html")
    page = read_page(tmp_path / "page.html", sortable=True)
    assert "Moments of the optimizers" in page.text
    assert f"{moments['overall']['on_floor']:.4g}" in page.text
    said = page.figures()
    assert len([words for words in said if words.startswith("DP-AdamBC: histogram of the second")]) == 2
    assert len([words for words in said if words.startswith("DP-AdamBC: histogram of the |update|")]) == 2


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
    lines = results_of(folder)
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
