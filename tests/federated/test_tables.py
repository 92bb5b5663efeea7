"""Tables of federated trainings, their reports, and the commands that make them."""

import json

import pytest

from adamas.cli import main
from adamas.federated.settings import FederatedSettings
from adamas.report import write_report
from adamas.reproduce import Results, load_table, results
from adamas.reproduce.one_run import finished_run
from adamas.reproduce.render import markdown
from adamas.reproduce.table import Cell
from tests.support.pages import read_page

TABLE = """
title = "A small federated table"
source = "Nobody (2026), Table 0"
claim = "Blocks are better."
seeds = 1
evaluations = 2
federated = true

[settings]
data = "digits"
model = "linear"
clients = 4
participation = 0.5
rounds = 4
local_steps = 2
batch_size = 16
least_examples = 100
epsilon = 8.0
delta = 1e-5
accountant = "rdp"

[columns.few]
settings = { dirichlet = 0.3 }

[columns.many]
settings = { dirichlet = 10.0 }

[rows.avg]
title = "DP-FedAvg"
settings = { algorithm = "dp-fedavg", algorithm_options = { lr = 0.5 } }

[rows.adamw]
title = "DP-FedAdamW"
settings = { algorithm = "dp-fedadamw", algorithm_options = { lr = 0.01 } }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Writes the table and its finished runs of one seed, and returns their folder."""
    folder = tmp_path_factory.mktemp("experiments") / "paper"
    folder.mkdir()
    (folder / "table.toml").write_text(TABLE)
    table = load_table(folder / "table.toml")
    with Results(folder / "table" / "results.jsonl", table) as kept:
        for cell in table.cells():
            line = finished_run(table.cell_settings(cell, 0), table.evaluations, table.histograms)
            kept.add({"row": cell.row, "column": cell.column, "seed": 0} | line)
    return folder


@pytest.mark.slow
def test_a_cell_is_a_federated_training_with_its_own_epsilon(made):
    table = load_table(made / "table.toml")
    settings = table.cell_settings(Cell("adamw", "few"), 3)
    assert settings == FederatedSettings(
        algorithm="dp-fedadamw",
        algorithm_options={"lr": 0.01},
        **{"data": "digits", "model": "linear", "clients": 4, "participation": 0.5, "rounds": 4},
        **{"local_steps": 2, "batch_size": 16, "least_examples": 100, "epsilon": 8.0, "delta": 1e-5},
        **{"accountant": "rdp", "dirichlet": 0.3, "seed": 3},
    )
    lines = Results(made / "table" / "results.jsonl", table).lines
    for line in lines:
        sizes = [sum(client) for client in line["label_counts"]]
        assert line["sampling_rate"] == 16 / min(sizes)
        assert min(sizes) >= 100
        assert line["epsilon"]["pld"] < line["epsilon"]["rdp"] <= 8.0
        assert line["steps"] == 8
        assert [place for place, _ in line["curve"]] == [2, 4]
        assert line["parameters"] == 650
        assert line["upload"] == {"avg": 650, "adamw": 651}[line["row"]]  # one layer, one block
    noise = {line["column"]: line["noise_multiplier"] for line in lines}
    assert noise["few"] > noise["many"]  # the smallest client has fewer examples, and needs more noise


@pytest.mark.slow
def test_results_made_with_other_defaults_of_the_algorithm_are_refused(made, monkeypatch):
    table = load_table(made / "table.toml")
    before = results.resolved_options
    monkeypatch.setattr(
        results, "resolved_options", lambda settings: before(settings) | {"algorithm.alignment": 0.7}
    )
    with pytest.raises(ValueError, match=r"algorithm\.alignment"):
        Results(made / "table" / "results.jsonl", table)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("histograms = true", "neither histograms nor measures"),
        ('measures = ["state"]', "neither histograms nor measures"),
        ('[settings]\nunit = "client"', "unit = 'record'"),
        ("[settings]\ncount_on_participation = true", "seed=None with count_on_participation"),
    ],
)
def test_a_table_that_asks_for_what_federated_training_lacks_is_refused(settings, message, tmp_path):
    place = "[settings]" if settings.startswith("[settings]") else "seeds = 1"
    text = TABLE.replace(place, settings if place in settings else f"{place}\n{settings}")
    (tmp_path / "table.toml").write_text(text.replace("dp-fedadamw", "dp-fedavg"))
    with pytest.raises(ValueError, match=message):
        load_table(tmp_path / "table.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("federated = true", "the settings of the table to have data"),
        ('algorithm = "dp-fedadamw"', "dp-fedsgd"),
        ("local_steps", "local_stepz"),
    ],
)
def test_a_table_with_wrong_settings_is_refused(text, message, tmp_path):
    wrong = {"federated = true": "", 'algorithm = "dp-fedadamw"': 'algorithm = "dp-fedsgd"'}
    (tmp_path / "table.toml").write_text(TABLE.replace(text, wrong.get(text, "local_stepz")))
    with pytest.raises(ValueError, match=message):
        load_table(tmp_path / "table.toml")


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_the_page_and_the_report_show_the_table_and_the_classes_of_each_client(made, tmp_path):
    table = load_table(made / "table.toml")
    kept = Results(made / "table" / "results.jsonl", table)
    page = markdown(kept)
    assert "DP-FedAdamW" in page
    assert write_report([made / "table"], tmp_path / "report.html") == []
    shown = read_page(tmp_path / "report.html", sortable=True)
    assert "Which client has which classes" in shown.text
    assert "of the client with the fewest, if it takes part in all rounds" in shown.text
    spreads = [words for words in shown.figures() if "examples are of one class" in words]
    assert len(spreads) == 2
    assert spreads[0].startswith("few, seed 0: 4 clients with ")


@pytest.mark.usefixtures("plots")
def test_a_federated_training_is_reported(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(
            [
                *("federated", "run", "--data", "digits", "--model", "linear", "--clients", "4"),
                *("--rounds", "2", "--local-steps", "2", "--noise-multiplier", "1", "--accountant", "rdp"),
                *("--backend", "process", "--out", str(tmp_path / "mine"), "--lr", "0.01"),
            ]
        )
    assert not stop.value.code
    said = capsys.readouterr()
    assert "round 2/2; 4 clients; test accuracy" in said.err
    assert "differentially private under adding or removing one record of one client" in said.out
    result = json.loads((tmp_path / "mine" / "result.json").read_text())
    assert result["settings"]["algorithm_options"] == {"lr": 0.01}
    assert write_report([tmp_path / "mine"], tmp_path / "report.html") == []
    shown = read_page(tmp_path / "report.html")
    assert "dp-fedadamw" in shown.text
    assert any(words.startswith("Test accuracy over the rounds: From ") for words in shown.figures())
    assert any(words.startswith("Examples of each client: 4 clients") for words in shown.figures())


def test_the_blocks_of_a_model_are_printed(capsys):
    with pytest.raises(SystemExit):
        main(["federated", "blocks", "--data", "digits", "--model", "mlp"])
    assert "an upload: 75,010 parameters + 2 blocks = 75,012 numbers" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["federated", "blocks", "--data", "digits", "--model", "mlp", "--json"])
    assert json.loads(capsys.readouterr().out)["coordinate_wise"] == 150020


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "fedavg"], "algorithm"),
        (["--backend", "ray"], "backend"),
        (["--set", "momentum=1"], "--set NAME=VALUE with NAME among lr, schedule"),
        (["--timeout", "0"], "timeout"),
        (["--epsilon", "1"], "exactly one of epsilon and noise_multiplier"),
        (["--task", "os"], "either task"),
    ],
)
def test_a_wrong_argument_prints_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(
            [
                *("federated", "run", "--data", "digits", "--model", "linear", "--clients", "4"),
                *("--rounds", "2", "--local-steps", "2", "--noise-multiplier", "1", *arguments),
            ]
        )
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
