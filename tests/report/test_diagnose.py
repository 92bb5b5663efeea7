"""`adamas train --diagnose`: lines of diagnostics that cost no privacy."""

import pytest
import torch
from safetensors.torch import load_file

from adamas.experiment import training as experiment
from adamas.report import write_report
from tests.support.command_line import call
from tests.support.pages import read_page
from tests.support.report_files import QUICK, lines_of


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
