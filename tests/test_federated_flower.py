"""Flower: what messages carry, what a node keeps and refuses, trainings in simulation and on sockets."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import federated_blobs
import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from test_federated_training import blobs, lines, run, saved_state
from torch.utils.data import TensorDataset

import adamas.run
from adamas.federated import ALGORITHMS
from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import make_server

ROOT = Path(__file__).parents[1]
NOW = Round(1, 3, 2)


def node(client=0, **config) -> Context:
    return Context(1, 1, {"partition-id": client, **config}, RecordDict(), {})


def trained(settings, context, *, round=NOW) -> tuple[dict, dict]:
    """A round of the client's side, as Flower would have it run: what the answer carries."""
    task = make_task(settings)
    server = make_server(settings, task, [len(task.client_data(number, 4)) for number in range(4)])
    _, records = server.open_round()
    words = {
        "settings": settings.to_json(),
        "round": asdict(round),
        "noise_multiplier": server.noise_multiplier,
    }
    return unpack(client_app._train(SimpleNamespace(content=pack(records, words)), context))


@pytest.fixture(autouse=True)
def no_task_of_an_earlier_test():
    client_app._task.cache_clear()


# --- messages -------------------------------------------------------------------------------------------


def test_what_is_packed_is_unpacked():
    records = {"a": {"x": torch.arange(3.0), "y.z": torch.ones(2, 2, dtype=torch.float64)}, "b": {}}
    words = {"settings": "text", "round": {"number": 1}}
    got, said = unpack(pack(records, words))
    assert said == words
    assert got.keys() == records.keys()
    for name, arrays in records.items():
        assert got[name].keys() == arrays.keys()
        for key, value in arrays.items():
            assert got[name][key].dtype == value.dtype
            assert torch.equal(got[name][key], value)


class Releases:
    """Keeps the releases of one training, and puts them in the place of another's."""

    def __init__(self, real):
        self.real, self.kept, self.replay = real, [], None

    def __call__(self, *arguments, **options):
        release = self.real(*arguments, **options)
        if self.replay is None:
            self.kept.append([value.clone() for value in release.mean.values()])
        else:
            for value, earlier in zip(release.mean.values(), self.replay.pop(0), strict=True):
                value.copy_(earlier)
        return release


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_that_leaves_a_client_follows_from_its_releases(algorithm, monkeypatch):
    """The same releases with other data give the same answer, bit for bit: it has nothing else of them."""
    releases = Releases(adamas.run.privatize)
    monkeypatch.setattr(adamas.run, "privatize", releases)
    settings = blobs(algorithm=algorithm)
    records, words = trained(settings, node())
    assert words == {}
    assert tuple(records) == settings.make_algorithm().uploads
    assert len(releases.kept) >= NOW.local_steps

    def other_data(client, clients):
        x, y = federated_blobs._points(99, federated_blobs.EXAMPLES).tensors
        return TensorDataset(3 * x, (y + 1) % 3)

    monkeypatch.setattr(federated_blobs, "client_data", other_data)
    own, _ = trained(settings, node())
    assert not _equal(own, records)  # the data make a difference
    releases.replay = list(releases.kept[: len(releases.kept) // 2])
    replayed, _ = trained(settings, node())
    assert _equal(replayed, records)
    assert not releases.replay


def _equal(left, right) -> bool:
    return all(torch.equal(left[name][key], value) for name in right for key, value in right[name].items())


def test_a_client_says_how_many_examples_it_has_and_nothing_else(monkeypatch):
    monkeypatch.setattr(client_app, "Message", lambda content, reply_to: content)
    content = client_app.describe(
        SimpleNamespace(content=pack({}, {"settings": blobs().to_json()})), node(client=2)
    )
    assert unpack(content) == ({}, {"client": 2, "examples": 42})
    with pytest.raises(ValueError, match="partition-id"):
        client_app._number(Context(1, 1, {}, RecordDict(), {}))


def test_an_error_is_answered_by_its_name_since_its_text_may_have_examples(monkeypatch, caplog):
    monkeypatch.setenv("FAILING_CLIENTS", "0")
    monkeypatch.setattr(client_app, "Message", lambda content, reply_to: content)
    settings = blobs()
    task = make_task(settings)
    _, records = make_server(settings, task, [40] * 4).open_round()
    words = {"settings": settings.to_json(), "round": asdict(NOW), "noise_multiplier": 1.0}
    content = client_app.train(SimpleNamespace(content=pack(records, words)), node())
    assert unpack(content) == ({}, {"failed": "ArithmeticError"})
    assert "an example says" in caplog.text  # the node's own log has it


# --- what a node keeps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in Flower's state", "in a file"])
def test_a_restarted_client_continues_its_ledger(where, tmp_path):
    settings = blobs()
    config = {"ledger": str(tmp_path / "ledger.json")} if where == "in a file" else {}
    context = node(**config)
    trained(settings, context)
    if where == "in a file":
        context = node(**config)  # another process, or another run: Flower's state is gone
    trained(settings, context)
    ledger = client_app._read_ledger(context)
    plan = settings.plan([federated_blobs.EXAMPLES])
    assert [count for _, count in ledger.entries] == [2 * NOW.local_steps]
    assert ledger.epsilon(1e-3, "rdp") == pytest.approx(plan.epsilon(1.0, rounds=2))


def test_the_cost_of_a_round_is_in_the_file_before_the_data_are_touched(tmp_path, monkeypatch):
    file = tmp_path / "ledger.json"
    seen = []

    def loss(model, batch):
        seen.append(json.loads(file.read_text())["entries"][0]["count"])
        return plain(model, batch)

    plain = federated_blobs.loss
    monkeypatch.setattr(federated_blobs, "loss", loss)
    trained(blobs(), node(ledger=str(file)))
    assert seen
    assert set(seen) == {NOW.local_steps}


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-fedsam"])
def test_a_node_refuses_what_its_budget_does_not_allow(algorithm, tmp_path):
    settings = blobs(algorithm=algorithm)
    plan = settings.plan([federated_blobs.EXAMPLES])
    enough = plan.epsilon(1.0, rounds=2) * 1.0001
    context = node(**{"max-epsilon": enough, "ledger": str(tmp_path / "ledger.json")})
    trained(settings, context)
    trained(settings, context)
    before = (tmp_path / "ledger.json").read_text()
    with pytest.raises(client_app.BudgetError, match=f"max-epsilon={re.escape(str(enough))}"):
        trained(settings, context)
    assert (tmp_path / "ledger.json").read_text() == before  # nothing was released, and nothing charged
    with pytest.raises(client_app.BudgetError, match="inf"):
        trained(blobs(algorithm=algorithm, noise_multiplier=0.0), node(**{"max-epsilon": 100.0}))


def test_control_variates_stay_on_the_node_from_round_to_round():
    settings = blobs(algorithm="dp-scaffold")
    context = node()
    trained(settings, context, round=Round(0, 3, 2))
    kept = context.state.array_records["memory/control"].to_torch_state_dict()
    first, _ = trained(settings, node())
    second, _ = trained(settings, context)
    assert any(bool(value.any()) for value in kept.values())
    assert not _equal(first, second)  # the one with a control variate goes elsewhere


# --- whole trainings ------------------------------------------------------------------------------------


def adamas_federated(out, *arguments, code=0, **environment) -> subprocess.CompletedProcess:
    command = [
        *("federated", "run", "--task", "federated_blobs", "--clients", "4", "--participation", "1"),
        *("--rounds", "2", "--local-steps", "2", "--batch-size", "10", "--noise-multiplier", "1"),
        *("--delta", "1e-3", "--accountant", "rdp", "--seed", "0", "--out", str(out), *arguments),
    ]
    places = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-m", "adamas", *command], env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    return done


def same_model(left: Path, right: Path) -> bool:
    mine, others = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def test_flowers_simulation_gives_what_one_process_gives_also_when_a_client_fails(tmp_path, monkeypatch):
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


def test_if_all_clients_fail_flowers_simulation_ends_with_an_error_and_a_state(tmp_path):
    done = adamas_federated(tmp_path, code=2, FAILING_CLIENTS="0,1,2,3")
    assert "Round 0 has no update that can be used. client 0: ArithmeticError" in done.stderr
    assert not (tmp_path / "result.json").exists()
    assert saved_state(tmp_path)["asked"] == [1] * 4


def test_two_nodes_on_sockets_give_what_one_process_gives(tmp_path):
    port = random.Random(os.getpid()).randrange(20000, 30000, 10)
    environment = os.environ | {"PORT": str(port), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [ROOT / "examples" / "federated" / "deploy", tmp_path / "sockets", "accountant='rdp'"],
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
