"""Trainings on Flower, in simulation and on sockets, equal those in one process."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from adamas.federated.settings import FederatedSettings
from tests.support.federated_runs import blobs, lines, run
from tests.support.flower_nodes import TASK

ROOT = Path(__file__).parents[3]


def adamas_federated(out, *arguments, **environment) -> subprocess.CompletedProcess:
    command = [
        *("federated", "run", "--task", TASK, "--clients", "4", "--participation", "1"),
        *("--rounds", "2", "--local-steps", "2", "--batch-size", "10", "--noise-multiplier", "1"),
        *("--delta", "1e-3", "--accountant", "rdp", "--seed", "0", "--out", str(out), *arguments),
    ]
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-m", "adamas", *command], env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done


def same_model(left: Path, right: Path) -> bool:
    mine, others = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


@pytest.mark.ray
def test_flower_simulation_equals_one_process_even_if_a_client_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILING_CLIENTS", "1")
    arguments = ("--algorithm", "dp-scaffold", "--lr", "0.1")
    adamas_federated(tmp_path / "flower", *arguments, "--json", FAILING_CLIENTS="1")
    run(
        blobs(participation=1.0, rounds=2, algorithm="dp-scaffold", algorithm_options={"lr": 0.1}),
        tmp_path / "process",
    )
    assert same_model(tmp_path / "flower", tmp_path / "process")
    for line in lines(tmp_path / "flower"):
        assert line["answered"] == [0, 2, 3]
        assert line["left_out"] == {"1": "ArithmeticError"}


@pytest.mark.ray
def test_two_nodes_on_sockets_equal_one_process(tmp_path):
    port = random.Random(os.getpid()).randrange(20000, 30000, 10)
    environment = os.environ | {"PORT": str(port), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    app = tmp_path / "app"
    shutil.copytree(ROOT / "examples" / "federated", app)
    with (app / "pyproject.toml").open("a") as file:
        file.write("seed = 0\n")
    environment["NODE_CONFIG"] = "allow-seed=true"
    process = subprocess.Popen(
        [app / "deploy", tmp_path / "sockets", "accountant='rdp'"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    result = json.loads((tmp_path / "sockets" / "result.json").read_text())
    assert [line["answered"] for line in lines(tmp_path / "sockets")] == [[0, 1]] * 2
    run(FederatedSettings(**result["settings"]), tmp_path / "process")
    assert same_model(tmp_path / "sockets", tmp_path / "process")
    for client in range(2):
        ledger = json.loads((tmp_path / "sockets" / f"ledger-{client}.json").read_text())
        assert [entry["count"] for entry in ledger["entries"]] == [10]
