"""The examples of private trainers work as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("package", "name", "steps"),
    [("transformers", "text_classification.py", 30), ("trl", "lora_sft.py", 20)],
)
def test_an_example_trains_within_its_budget(package, name, steps, tmp_path):
    pytest.importorskip(package)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "huggingface" / name)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    statement = done.stdout.splitlines()[-1]
    assert statement.startswith(f"The {steps} steps so far are (7.99")
    assert "Poisson sampling" in statement
    assert "given seed" not in statement
