"""Trained runs to report on."""

import pytest

from adamas.cli import main
from tests.support.report_files import QUICK


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Trains four runs, one of them raw and one without diagnostics, and returns their folder."""
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
