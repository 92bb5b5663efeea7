"""`adamas train --diagnose`: diagnostics of the optimizer, at no privacy cost."""

import pytest
import torch
from safetensors.torch import load_file

from adamas.experiment import training as experiment
from adamas.report import write_report
from tests.support.command_line import call
from tests.support.pages import read_page
from tests.support.report_files import QUICK, diagnostics_of
from tests.support.small_trainings import quick


def test_a_short_run_has_a_line_for_each_step_and_histograms_in_the_last(runs):
    lines = diagnostics_of(runs / "corrected")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert ["histograms" in line for line in lines] == [False] * 11 + [True]
    assert all(line["private"] is True for line in lines)
    assert not any("raw" in line for line in lines)
    assert lines[-1]["overall"]["coordinates"] == 650
    assert list(lines[0]["layers"]) == ["1.weight", "1.bias"]
    assert sum(lines[-1]["histograms"]["v_hat"]["counts"]) + lines[-1]["histograms"]["v_hat"]["below"] == 650


def test_diagnose_every_sets_the_interval_and_includes_the_last_step(runs):
    assert [line["step"] for line in diagnostics_of(runs / "sgd")] == [2, 4, 5]


def test_a_long_run_has_a_limited_number_of_lines(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "_LINES", 5)
    experiment.train_and_save(quick(steps=12), tmp_path / "run", diagnose=True)
    assert [line["step"] for line in diagnostics_of(tmp_path / "run")] == [3, 6, 9, 12]


def test_diagnosing_changes_neither_weights_nor_ledger(runs):
    models = [load_file(runs / name / "model.safetensors") for name in ("corrected", "plain", "raw")]
    for other in models[1:]:
        assert all(torch.equal(models[0][key], other[key]) for key in models[0])
    ledgers = [(runs / name / "ledger.json").read_text() for name in ("corrected", "plain", "raw")]
    assert ledgers[0] == ledgers[1]
    assert ledgers[0] != ledgers[2]


@pytest.mark.usefixtures("plots")
def test_a_run_that_dies_leaves_complete_lines_that_can_be_reported(monkeypatch, tmp_path):
    original = experiment.PrivateRun.diagnostics

    def dying(self, **options):
        if self.steps_done == 4:
            raise KeyboardInterrupt
        return original(self, **options)

    monkeypatch.setattr(experiment.PrivateRun, "diagnostics", dying)
    with pytest.raises(KeyboardInterrupt):
        experiment.train_and_save(quick(), tmp_path / "run", diagnose=True)
    assert [line["step"] for line in diagnostics_of(tmp_path / "run")] == [1, 2, 3]
    with pytest.raises(ValueError, match=r"diagnostics\.jsonl"):
        experiment.train_and_save(quick(), tmp_path / "run", diagnose=True)
    # The complete lines can be reported, even if an incomplete one follows.
    with (tmp_path / "run" / "diagnostics.jsonl").open("a") as file:
        file.write('{"step": 4, "over')
    assert write_report([tmp_path / "run"], tmp_path / "page.html") == []
    assert "did not finish" in read_page(tmp_path / "page.html").text


def test_bad_options_are_refused_and_leave_no_file(capsys, tmp_path, monkeypatch):
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
