"""The example of a table works as it stands, from Python and from the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tables"


@pytest.mark.subprocess
def test_the_example_trains_and_the_command_line_on_its_file(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*command, **settings):
        command = [sys.executable, *command]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment | settings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = run(str(EXAMPLE / "patients.py"), ROWS="2500")
    assert len(re.findall(r"AUC 0\.[67]", shown)) == 3, shown
    assert "(3.000, 1e-05)-differentially private" in shown
    schema = str(EXAMPLE / "patients.toml")
    train = ["-m", "adamas", "train", "--data", "patients.csv", "--schema", schema, "--epsilon", "3"]
    result = json.loads(run(*train, "--json"))
    assert result["test_scores"]["auc"] > 0.6
    assert result["test_rows"] == 500
