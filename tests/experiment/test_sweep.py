"""Several runs within one budget: `adamas sweep` and `adamas ledger`."""

import json

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from adamas import DataLedger
from adamas.accounting.ledger import RDP_ORDERS
from adamas.cli import main
from adamas.experiment import sweep
from adamas.experiment import training as experiment
from adamas.experiment.training import train_and_save
from tests.support.small_trainings import quick


def make_settings(**changes):
    budget = {"data": "digits/validation", "steps": 4, "epsilon": 3.0, "noise_multiplier": None}
    return quick(**budget | changes)


@pytest.mark.slow
def test_a_sweep_pays_for_all_of_its_runs(tmp_path):
    ledger = DataLedger.create(tmp_path / "l", epsilon=3.0, delta=1e-5, accountant="rdp")
    result = sweep.sweep(
        make_settings(), {"lr": [0.01, 0.1], "eps": [1e-8, 1e-3]}, tmp_path / "out", data_ledger=ledger.path
    )
    runs = result["runs"]
    tried = [tuple(run["tried"].values()) for run in runs]
    assert tried == [(0.01, 1e-8), (0.01, 1e-3), (0.1, 1e-8), (0.1, 1e-3)]
    assert list(runs[0]["tried"]) == ["lr", "eps"]
    assert result["best"] == max(runs, key=lambda run: run["accuracy"])
    first = json.loads((tmp_path / "out" / "run-1" / "result.json").read_text())
    accountant = RdpAccountant(RDP_ORDERS)
    step = dp_accounting.PoissonSampledDpEvent(
        first["sampling_rate"], dp_accounting.GaussianDpEvent(result["noise_multiplier"])
    )
    accountant.compose(step, 4 * 4)
    assert result["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5))
    assert 2.9 < result["epsilon"] <= 3.0
    assert first["epsilon"] < 2.5  # of one run alone
    assert ledger.epsilon() == pytest.approx(result["epsilon"])
    assert "4 runs composed" in result["accounting"]


@pytest.mark.slow
@pytest.mark.parametrize("selection", sweep.SELECTIONS)
def test_no_two_runs_of_a_sweep_share_their_noise(selection, tmp_path, monkeypatch):
    """Nor does a run that is made later with the sweep's seed share it."""
    seeds, keys = [], []
    make = experiment.private_run

    def private_run(settings, *arguments, **options):
        run = make(settings, *arguments, **options)
        seeds.append(settings.seed)
        keys.extend(run.noise.seed.words("noise", step, count=8).tobytes() for step in range(run.steps))
        return run

    monkeypatch.setattr(experiment, "private_run", private_run)
    options = {"mean_runs": 20.0} if selection == "best" else {}
    sweep.sweep(
        make_settings(), {"lr": [0.01, 0.1], "eps": [1e-8, 1e-3]}, tmp_path, selection=selection, **options
    )
    assert len(seeds) >= 3
    train_and_save(make_settings(noise_multiplier=1.0, epsilon=None), tmp_path / "later")
    assert seeds[-1] == 5
    assert len(set(seeds)) == len(seeds)
    assert len(set(keys)) == len(keys) == 4 * len(seeds)
    assert max(seeds) < 2**53  # exact in every reader of JSON


@pytest.mark.slow
def test_seeds_of_a_large_sweep_are_different():
    seeds = {sweep._changed(make_settings(), {}, 1.0, number).seed for number in range(20_000)}
    assert len(seeds) == 20_000


def test_a_sweep_without_a_seed_has_runs_without_one(tmp_path):
    sweep.sweep(make_settings(seed=None), {"lr": [0.01, 0.1]}, tmp_path)
    for name in ("run-1", "run-2"):
        assert json.loads((tmp_path / name / "result.json").read_text())["settings"]["seed"] is None


def test_a_stopped_sweep_continues(tmp_path, monkeypatch):
    made = []
    train = sweep.train_and_save

    def dying(settings, out, **options):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(out.name)
        return train(settings, out, **options)

    monkeypatch.setattr(sweep, "train_and_save", dying)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(make_settings(), {"lr": [0.01, 0.1]}, tmp_path)
    monkeypatch.setattr(sweep, "train_and_save", lambda *a, **o: (made.append("again"), train(*a, **o))[1])
    result = sweep.sweep(make_settings(), {"lr": [0.01, 0.1]}, tmp_path)
    assert made == ["run-1", "again"]
    assert len(result["runs"]) == 2
    with pytest.raises(ValueError, match="finished sweep"):
        sweep.sweep(make_settings(), {"lr": [0.01, 0.1]}, tmp_path)


@pytest.mark.slow
def test_releasing_only_the_best_run_costs_one_repeat_and_select_event(tmp_path):

    ledger = DataLedger.create(tmp_path / "l", epsilon=3.0, delta=1e-5, accountant="rdp")
    out = tmp_path / "out"
    result = sweep.sweep(
        make_settings(),
        {"lr": [0.01, 0.1, 1.0]},
        out,
        selection="best",
        mean_runs=2.0,
        data_ledger=ledger.path,
    )
    z = result["noise_multiplier"]
    accountant = RdpAccountant(RDP_ORDERS)
    found = json.loads((out / "best" / "result.json").read_text())
    step = dp_accounting.PoissonSampledDpEvent(found["sampling_rate"], dp_accounting.GaussianDpEvent(z))
    accountant.compose(
        dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(step, 4), 2.0, 1)
    )
    assert result["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5))
    assert found["epsilon"] < result["epsilon"] <= 3.0
    assert ledger.epsilon() == pytest.approx(result["epsilon"])
    assert "runs" not in result
    assert sorted(path.name for path in out.iterdir()) == [".lock", "best", "sweep.json"]
    assert result["best"]["accuracy"] == found["test_accuracy"]
    assert "only the best one may be shown" in result["accounting"]


@pytest.mark.slow
def test_the_number_of_runs_is_geometric(tmp_path, monkeypatch):
    """Counts the runs of 200 sweeps with 3 runs on average, without training.

    The limit is 5 standard errors, 0.87: a false alarm has probability 6e-7. A Poisson number would be 1 in
    15% of the sweeps instead of a third.
    """
    counts = []

    def run(settings, folder, **options):
        counts[-1] += 1
        folder.mkdir()
        return {"test_accuracy": 0.5}

    monkeypatch.setattr(sweep, "train_and_save", run)
    monkeypatch.setattr(sweep.calibrate, "noise_multiplier_for", lambda *_, **__: 1.0)
    monkeypatch.setattr(sweep, "composed_epsilon", lambda *_: 1.0)
    for number in range(200):
        counts.append(0)
        sweep.sweep(
            make_settings(seed=number),
            {"lr": [1, 2]},
            tmp_path / str(number),
            selection="best",
            mean_runs=3.0,
        )
    assert min(counts) == 1
    assert abs(np.mean(counts) - 3) < 5 * np.sqrt(6 / 200)
    assert abs(np.mean(np.array(counts) == 1) - 1 / 3) < 5 * np.sqrt(2 / 9 / 200)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"data": "digits"}, {}, "digits/validation"),
        ({"epsilon": None, "noise_multiplier": 1.0}, {}, "no noise_multiplier"),
        ({"sampling": "shuffled"}, {}, "sampling='poisson'"),
        ({}, {"selection": "some"}, "selection='some'"),
        ({}, {"mean_runs": 2.0}, "mean_runs for selection='best'"),
        ({}, {"selection": "best", "mean_runs": 0.5}, "mean_runs=0.5"),
        ({}, {"tried": {}}, "values to try"),
        ({}, {"tried": {"speed": [1]}}, "speed"),
    ],
)
def test_a_wrong_sweep_is_refused_before_any_run(changes, options, message, tmp_path):
    tried = options.pop("tried", {"lr": [0.1]})
    with pytest.raises(ValueError, match=message):
        sweep.sweep(make_settings(**changes), tried, tmp_path / "out", **options)


@pytest.mark.slow
def test_sweep_and_train_commands_share_the_budget_of_a_ledger(tmp_path, capsys):
    path = str(tmp_path / "data.ledger")
    with pytest.raises(SystemExit, match="0"):
        main(["ledger", "create", path, "--epsilon", "3", "--accountant", "rdp"])
    with pytest.raises(SystemExit, match="0"):
        main([
            "sweep", "--try", "lr=0.01,0.1", "--epsilon", "2", "--steps", "3", "--model", "linear",
            "--accountant", "rdp", "--data-ledger", path, "--out", str(tmp_path / "out"),
        ])  # fmt: skip
    text = capsys.readouterr().out
    assert "2 runs composed" in text
    assert "run-2" in text
    with pytest.raises(SystemExit, match="0"):
        main(["ledger", "show", path])
    text = capsys.readouterr().out
    assert text.count("finished") == 2
    assert "of 3 " in text
    with pytest.raises(SystemExit, match="0"):
        main(["ledger", "show", path, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["epsilon"] <= 2.0
    assert len(shown["runs"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main([
            "train", "--data", "digits", "--model", "linear", "--noise-multiplier", "0.5", "--steps", "20",
            "--accountant", "rdp", "--data-ledger", path, "--out", str(tmp_path / "more"),
        ])  # fmt: skip
    assert "above its budget of 3" in capsys.readouterr().err
