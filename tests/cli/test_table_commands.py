"""`adamas train --data FILE` and `adamas schema`, on tables in files."""

import json

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from adamas.tabular import PrivateClassifier  # noqa: E402
from tests.support.command_line import call  # noqa: E402
from tests.support.pages import read_page  # noqa: E402
from tests.support.patients import BOUNDS, CATEGORIES, FAST, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

N = 500
SCHEMA = """\
target = "outcome"
classes = [0, 1]
[bounds]
age = [0, 120]
pressure = [50, 250]
[categories]
ward = ["A", "B", "C"]
"""
USUAL = ["--epsilon", "3", "--accountant", "rdp", "--batch-size", "80", "--seed", "1", "--delta", "1e-5"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes a table in both kinds of files, and its schema, into the current folder."""
    monkeypatch.chdir(tmp_path)
    table, labels, target = patients(N)
    written = table.assign(outcome=labels, score=target)
    written.to_csv("patients.csv", index=False)
    written.to_parquet("patients.parquet")
    (tmp_path / "patients.toml").write_text(SCHEMA)
    return tmp_path


def trained(capsys, *arguments):
    """Returns the result, what was printed, and the errors of a training."""
    code, out, err = call(capsys, "train", "--out", "run", *USUAL, *arguments)
    assert code == 0, err
    with open("run/result.json") as file:
        return json.load(file), out, err


def test_csv_parquet_and_flags_give_the_same_model(folder, capsys):
    flags = ["--target", "outcome", "--classes", "0, 1", "--categories", "ward=A, B ,C"]
    flags += ["--bounds", "age=0:120", "--bounds", "pressure=50:250"]
    results = []
    for number, arguments in enumerate(
        (
            ["--data", "patients.csv", "--schema", "patients.toml"],
            ["--data", "patients.parquet", "--schema", "patients.toml"],
            ["--data", "patients.csv", *flags],
        )
    ):
        code, _, err = call(capsys, "train", "--out", f"run{number}", *USUAL, *arguments)
        assert code == 0, err
        results.append(json.loads((folder / f"run{number}" / "result.json").read_text()))
    first = results[0]
    assert all(one["test_scores"] == first["test_scores"] for one in results)
    scores = first["test_scores"]
    assert scores["accuracy"] == first["test_accuracy"] > scores["majority_accuracy"] + 0.1
    assert scores["auc"] > 0.9
    assert scores["brier"] < scores["prior_brier"] - 0.1
    assert (first["test_rows"], first["sampling_rate"], first["steps"]) == (100, 0.2, 100)
    assert 2.9 < first["epsilon"] <= 3.0
    assert (first["settings"]["model"], first["settings"]["schedule"]) == ("linear", "linear")
    assert first["settings"]["rule_options"] == {"lr": 0.1}


def test_the_console_shows_what_a_constant_reaches(folder, capsys):
    result, out, _ = trained(capsys, "--data", "patients.csv", "--schema", "patients.toml")
    scores = result["test_scores"]
    assert f"{scores['accuracy']:.2%}  (the majority: {scores['majority_accuracy']:.2%})" in out
    assert f"test AUC        {scores['auc']:.4g}" in out
    assert f"test Brier      {scores['brier']:.4g}" in out
    assert "scored rows     100\n" in out
    assert "no finite gradient" not in out


def test_rows_that_are_not_scored_are_told(folder, capsys):
    table, labels, _ = patients(N)
    words = np.where(labels == 1, "sick", "well")
    table.assign(outcome=words).to_csv("patients.csv", index=False)
    (folder / "patients.toml").write_text(SCHEMA.replace("[0, 1]\n[", '["sick", "wel"]\n['))
    result, out, _ = trained(capsys, "--data", "patients.csv", "--schema", "patients.toml")
    assert result["test_rows"] + result["test_rows_left_out"] == 100
    assert f"scored rows     {result['test_rows']} of 100: the others have no known label" in out
    assert result["test_rows"] < 90


def test_validation_rows_without_a_label_are_not_scored(folder, capsys):
    table, labels, _ = patients(N)
    table.assign(outcome=np.where(np.arange(N) % 2, labels, 7)).to_csv("patients.csv", index=False)
    result, _, _ = trained(capsys, "--data", "patients.csv/validation", "--schema", "patients.toml")
    assert result["test_rows"] + result["test_rows_left_out"] == 40
    assert result["test_rows"] < 35


def test_a_number_and_a_test_file(folder, capsys):
    table, _, target = patients(200, seed=1)
    table.assign(score=target).to_csv("test.csv", index=False)
    result, out, _ = trained(
        capsys,
        *(
            "--data",
            "patients.csv",
            "--test-file",
            "test.csv",
            "--target",
            "score",
            "--target-bounds",
            "0:10",
        ),
        *("--bounds", "age=0:120", "--categories", "ward=A,B,C"),
    )
    assert result["test_accuracy"] is None
    assert result["test_rows"] == 200
    assert result["test_scores"]["rmse"] < 0.6 * result["test_scores"]["mean_rmse"]
    assert result["settings"]["rule_options"] == {"lr": 0.03}
    assert "test RMSE" in out


def test_the_owner_can_count_rows_and_the_run_is_the_same(folder, capsys):
    table, labels, _ = patients(N)
    table.assign(outcome=np.where(np.arange(N) % 10 == 0, "?", labels)).to_csv("patients.csv", index=False)
    arguments = ["--data", "patients.csv", "--schema", "patients.toml"]
    silent, _, err = trained(capsys, *arguments)
    assert "gradient" not in err
    weights = (folder / "run/model.safetensors").read_bytes()
    for file in (folder / "run").iterdir():
        file.unlink()
    told, out, err = trained(capsys, *arguments, "--count-unusable")
    split = json.loads(json.dumps(told))
    assert "of 400 examples have no finite gradient" in err
    assert "not private" in err
    counted = int(err.split()[1])
    assert counted + (100 - told["test_rows"]) == 50
    assert "gradient" not in out
    assert {k: v for k, v in silent.items() if k != "seconds"} == {
        k: v for k, v in split.items() if k != "seconds"
    }
    assert (folder / "run/model.safetensors").read_bytes() == weights


def test_a_run_on_a_table_resumes(folder, capsys):
    arguments = ["--data", "patients.csv", "--schema", "patients.toml", "--checkpoint-every", "40"]
    first, _, _ = trained(capsys, *arguments)
    again, out, _ = trained(capsys, *arguments, "--resume")
    assert again == first
    assert "nothing was trained" in out
    code, _, err = call(
        capsys,
        *("train", "--out", "run", *USUAL, *arguments, "--resume", "--bounds", "age=0:100"),
    )
    assert code == 2
    assert "data_options was" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "patients.csv"], "--target"),
        (["--data", "patients.csv", "--target", "outcome"], "either classes"),
        (["--data", "digits", "--target", "outcome"], "--target only with a table"),
        (["--data", "patients.csv", "--schema", "patients.toml", "--bounds", "age"], "COLUMN=VALUES"),
        (["--data", "patients.csv", "--schema", "patients.toml", "--bounds", "age=1"], "LOW:HIGH"),
        (["--data", "patients.csv", "--schema", "patients.toml", "--hops", "2"], "--hops"),
        (["--data", "nowhere.csv", "--schema", "patients.toml"], "Expected a file nowhere.csv, found none."),
        (["--data", "patients.csv", "--schema", "a.toml"], "Expected a schema in a.toml, found no such file"),
        (
            ["--data", "patients.csv", "--schema", "patients.toml", "--test-file", "a.csv"],
            "Expected a file a.csv, found none.",
        ),
        (
            ["--data", "patients.csv", "--schema", "patients.toml", "--test-fraction", "1.5"],
            "Expected --test-fraction 1.5 to leave rows",
        ),
        (
            ["--data", "patients.csv", *("--bounds", "age=0:9", "--bounds", "age=0:120")],
            "Expected --bounds age= once, got it 2 times",
        ),
        (
            ["--data", "patients.csv", "--target", "outcome", "--bounds", "age=0:9"],
            "Give --classes public if",
        ),
        (["--data", "patients.csv", "--schema", "patients.toml", "--delta", "0.1"], "--allow-large-delta."),
        (
            [
                "--data",
                "patients.csv",
                "--schema",
                "patients.toml",
                "--test-file",
                "a",
                "--test-fraction",
                "0.5",
            ],
            "got both",
        ),
    ],
)
def test_what_is_wrong_is_one_line(folder, capsys, arguments, message):
    code, _, err = call(capsys, "train", "--out", "run", *USUAL, *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_schema_is_of_a_table(folder, capsys):
    code, _, err = call(capsys, "schema", "common.py")
    assert code == 2
    assert "ends in .csv or .parquet, got common.py" in err


def test_a_schema_is_begun_from_names_and_never_replaced(folder, capsys):
    code, out, _ = call(capsys, "schema", "patients.parquet")
    assert code == 0
    assert '# "ward" = ["a", "b"]' in out
    assert call(capsys, "schema", "patients.csv", "--out", "new.toml")[0] == 0
    assert '# "age" = [0, 1]' in (folder / "new.toml").read_text()
    code, _, err = call(capsys, "schema", "patients.csv", "--out", "new.toml")
    assert code == 2
    assert "not to exist" in err


def test_command_and_estimator_reach_the_same(folder, capsys):
    result, _, _ = trained(capsys, "--data", "patients.csv", "--schema", "patients.toml")
    table, labels, _ = patients(N)
    model = PrivateClassifier(3.0, bounds=BOUNDS, categories=CATEGORIES, classes=[0, 1], **FAST)
    test, test_labels, _ = patients(N, seed=1)
    auc = model.fit(table, labels).evaluate(test, test_labels)["auc"]
    assert abs(auc - result["test_scores"]["auc"]) < 0.05


@pytest.mark.usefixtures("plots")
def test_a_report_shows_the_scores_beside_those_of_a_constant(folder, capsys):
    result, _, _ = trained(capsys, "--data", "patients.csv", "--schema", "patients.toml")
    assert call(capsys, "report", "run")[0] == 0
    text = read_page(folder / "run" / "report.html").text
    assert "Scores of the test rows, without noise" in text
    for name, value in result["test_scores"].items():
        assert f"{name.replace('_', ' ')}{value:.4g}" in text
