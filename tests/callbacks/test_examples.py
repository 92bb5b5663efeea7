"""The examples of watching a run work as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUIET = {"WANDB_SILENT": "true", "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}


def run_example(name, folder, **settings):
    """Runs an example in a folder of its own, and returns what it prints."""
    pytest.importorskip("sklearn")
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), **settings}
    command = [sys.executable, str(ROOT / "examples" / "watching" / name)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("package", "name", "pattern"),
    [
        ("tensorboard", "log_to_tensorboard.py", "runs/tensorboard/events*"),
        ("wandb", "log_to_wandb.py", "wandb/offline-run-*"),
        ("mlflow", "log_to_mlflow.py", "mlflow.db"),
    ],
)
def test_a_tracker_has_files_afterwards(package, name, pattern, tmp_path):
    pytest.importorskip(package)
    epsilon = re.search(r"epsilon ([\d.]+)", run_example(name, tmp_path, EPOCHS="2")).group(1)
    assert 2.99 < float(epsilon) <= 3
    assert list(tmp_path.glob(pattern))


@pytest.mark.subprocess
@pytest.mark.parametrize("validation", ["public", "private"])
def test_a_training_stops_early_and_spends_less(validation, tmp_path):
    said = run_example("stop_early.py", tmp_path, VALIDATION=validation, EPOCHS="80")
    done, planned = map(int, re.search(r"(\d+) of (\d+) steps", said).groups())
    assert done < planned
    assert float(re.search(r"training record: ([\d.]+)", said).group(1)) < 3
    assert ("validation record" in said) == (validation == "private")
