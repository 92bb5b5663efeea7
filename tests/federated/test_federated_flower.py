"""Flower: what messages carry, what a node keeps and refuses, trainings in simulation and on sockets."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

import adamas.run.loop
from adamas._words import rounded_up
from adamas.federated import ALGORITHMS
from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app, server_app
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.flower.node_config import NodeConfig, RefusedError
from adamas.federated.flower.node_ledger import node_ledger
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import make_server
from tests.support import federated_blobs
from tests.support.federated_messages import sent
from tests.support.federated_runs import blobs, lines, run, saved_state

ROOT = Path(__file__).parents[2]
NOW = Round(1, 3, 2)


def node(client=0, **config) -> Context:
    """A node that imports the task; without a ledger it accepts a seed as well."""
    own = {} if "ledger" in config else {"allow-seed": True}
    known = {"partition-id": client, "task": "tests.support.federated_blobs", **own, **config}
    return Context(1, 1, known, RecordDict(), {})


def trained(settings, context, *, round=NOW, examples=None) -> tuple[dict, dict]:
    """A round of the client's side, as Flower would have it run: what the answer carries."""
    task = make_task(settings)
    server = make_server(settings, task, [len(task.client_data(number, 4)) for number in range(4)])
    _, records = server.open_round()
    number = context.node_config["partition-id"]
    words = {
        "settings": settings.to_json(),
        "round": asdict(round),
        "noise_multiplier": server.noise_multiplier,
        "examples": server.sizes[number] if examples is None else examples,
    }
    return unpack(client_app._train(pack(records, words), NodeConfig.of(context.node_config), context))


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
    releases = Releases(adamas.run.loop.privatize)
    monkeypatch.setattr(adamas.run.loop, "privatize", releases)
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


def test_a_client_says_how_many_examples_it_has_and_nothing_else():
    context = node(client=2)
    request = pack({}, {"settings": blobs().to_json()})
    content = client_app._describe(request, NodeConfig.of(context.node_config), context)
    assert unpack(content) == ({}, {"client": 2, "examples": 42})


@pytest.mark.parametrize("trusting", [False, True])
@pytest.mark.parametrize("what", ["query", "train"])
def test_an_error_is_answered_by_a_word_since_its_text_may_have_examples(what, trusting, monkeypatch, caplog):
    def client_data(client, clients):
        raise ArithmeticError("an example says Jane Roe")

    monkeypatch.setattr(federated_blobs, "client_data", client_data)
    words = {"settings": blobs().to_json()}
    if what == "train":
        words |= {"round": asdict(NOW), "noise_multiplier": 1.0, "examples": 40}
    reply = client_app.app(sent(pack({}, words), what), node(**{"trust-server": trusting}))
    assert unpack(reply.content) == ({}, {"failed": "ArithmeticError" if trusting else "Error"})
    assert "Jane Roe" in caplog.text  # the node's own log has it


# --- what a node keeps and refuses ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in Flower's state", "in a file"])
def test_a_restarted_client_continues_its_ledger(where, tmp_path):
    settings = blobs(seed=None)
    config = {"ledger": str(tmp_path / "ledger.json")} if where == "in a file" else {}
    context = node(**config)
    trained(settings, context, round=Round(0, 3, 2))
    if where == "in a file":
        context = node(**config)  # another process, or another run: Flower's state is gone
    trained(settings, context)
    with node_ledger(NodeConfig.of(context.node_config).ledger, context.state) as kept:
        plan = settings.plan([federated_blobs.EXAMPLES])
        assert [count for _, count in kept.ledger.entries] == [2 * NOW.local_steps]
        assert kept.ledger.epsilon(1e-3, "rdp") == pytest.approx(plan.epsilon(1.0, rounds=2))


def test_the_cost_of_a_round_is_in_the_file_before_the_data_are_touched(tmp_path, monkeypatch):
    file, seen = tmp_path / "ledger.json", tmp_path / "seen"

    def loss(model, batch):
        with seen.open("a") as notes:  # a loss may keep nothing in memory
            notes.write(f"{json.loads(file.read_text())['entries'][0]['count']}\n")
        return plain(model, batch)

    plain = federated_blobs.loss
    monkeypatch.setattr(federated_blobs, "loss", loss)
    trained(blobs(seed=None), node(ledger=str(file)))
    assert set(seen.read_text().split()) == {str(NOW.local_steps)}


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-fedsam"])
def test_a_node_refuses_what_its_budget_does_not_allow(algorithm, tmp_path):
    settings = blobs(algorithm=algorithm, seed=None)
    # The node's delta and accountant: the server's is rdp.
    plan = blobs(algorithm=algorithm, delta=1e-5, accountant="pld").plan([federated_blobs.EXAMPLES])
    enough = plan.epsilon(1.0, rounds=2) * 1.0001
    config = {"max-epsilon": enough, "delta": 1e-5, "ledger": str(tmp_path / "ledger.json")}
    trained(settings, node(**config), round=Round(0, 3, 2))
    trained(settings, node(**config), round=Round(1, 3, 2))
    before = (tmp_path / "ledger.json").read_text()
    with pytest.raises(RefusedError, match=f"max-epsilon={rounded_up(enough)}"):
        trained(settings, node(**config), round=Round(2, 3, 2))
    assert (tmp_path / "ledger.json").read_text() == before  # nothing was released, and nothing charged
    with pytest.raises(RefusedError, match=r"noise_multiplier=0, and the node min-noise-multiplier=0.02"):
        trained(
            blobs(algorithm=algorithm, noise_multiplier=0.0, seed=None),
            node(**config | {"max-epsilon": 1e6, "ledger": str(tmp_path / "other.json")}),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"unit": "client", "algorithm": "dp-fedavg", "seed": None},
            "unit='client' sends updates without noise",
        ),
        ({}, "the server knows the noise"),
    ],
)
def test_a_node_with_a_ledger_refuses_what_the_ledger_would_be_wrong_about(options, message, tmp_path):
    with pytest.raises(RefusedError, match=message):
        trained(blobs(**options), node(ledger=str(tmp_path / "ledger.json")))
    assert not (tmp_path / "ledger.json").exists()
    trained(blobs(), node(**{"ledger": str(tmp_path / "ledger.json"), "allow-seed": True}))


def test_a_client_whose_data_have_changed_since_the_start_does_not_train(tmp_path):
    with pytest.raises(RefusedError, match="has 40 examples now, and had 400 when the training began"):
        trained(blobs(), node(), examples=400)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "partition-id"),
        ({"partition-id": 0, "max_epsilon": 1.0}, "got 'max_epsilon'"),
        ({"partition-id": 0, "max-epsilon": 1.0, "ledger": "x"}, "with max-epsilon to have delta"),
        ({"partition-id": 0, "max-epsilon": 1.0, "delta": 1e-5}, "with max-epsilon to have ledger"),
        ({"partition-id": 0, "max-epsilon": -1.0, "delta": 1e-5, "ledger": "x"}, "max-epsilon"),
        ({"partition-id": 0, "max-epsilon": 1.0, "delta": 2.0, "ledger": "x"}, "delta"),
        ({"partition-id": True}, "partition-id=True"),
        ({"partition-id": "0"}, "partition-id='0'"),
        ({"partition-id": 0, "allow-seed": "yes"}, "allow-seed to be true or false"),
        ({"partition-id": 0, "trust-server": True, "ledger": "x"}, "either ledger or trust-server"),
        ({"partition-id": 0, "accountant": "prv"}, "accountant='prv'"),
        ({"partition-id": 0, "min-noise-multiplier": 0.001}, "min-noise-multiplier=0.001"),
        ({"partition-id": 0, "min-noise-multiplier": math.nan}, "min-noise-multiplier=nan"),
        ({"partition-id": 0, "max-clip-norm": math.inf}, "max-clip-norm=inf"),
        ({"partition-id": 0, "max-local-steps": 0}, "max-local-steps=0"),
        ({"partition-id": 0, "max-batch-size": 1.5}, "max-batch-size=1.5"),
    ],
)
def test_the_configuration_of_a_node_is_checked(config, message):
    with pytest.raises((ValueError, TypeError), match=message):
        NodeConfig.of(config)


def test_a_node_is_one_of_the_clients():
    with pytest.raises(RefusedError, match="partition-id=4 below the number of clients=4"):
        NodeConfig.of({"partition-id": 4}).check(blobs())


def test_control_variates_stay_on_the_node_from_round_to_round():
    settings = blobs(algorithm="dp-scaffold")
    context = node()
    trained(settings, context, round=Round(0, 3, 2))
    kept = context.state.array_records["memory/control"].to_torch_state_dict()
    first, _ = trained(settings, node())
    second, _ = trained(settings, context)
    assert any(bool(value.any()) for value in kept.values())
    assert not _equal(first, second)  # the one with a control variate goes elsewhere


# --- the server's side ----------------------------------------------------------------------------------


class Reply:
    """A message as the grid gives it."""

    def __init__(self, node, content=None, code=None):
        self.metadata, self.content = SimpleNamespace(src_node_id=node), content
        self.error = SimpleNamespace(code=code)

    def has_error(self):
        return self.content is None


class Grid:
    """Nodes 10, 11, ... are clients 0, 1, ..., if nothing else is said; `answers` are those to a round."""

    def __init__(self, clients=4):
        self.nodes = {10 + client: client for client in range(clients)}
        self.sizes = {client: federated_blobs.EXAMPLES + client for client in range(clients)}
        self.answers = []

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, timeout):
        if messages and messages[0].message_type == "train":
            self.asked = [(message.node, unpack(message.content)[1]) for message in messages]
            return self.answers
        found = []
        for message in messages:
            client = self.nodes[message.node]
            failed = isinstance(client, str)
            said = {"failed": client} if failed else {"client": client, "examples": self.sizes[client]}
            found.append(Reply(message.node, pack({}, said)))
        return found


@pytest.fixture
def grid(monkeypatch):
    def message(content, node, message_type, group_id=None):
        return SimpleNamespace(content=content, node=node, message_type=message_type)

    monkeypatch.setattr(server_app, "Message", message)
    return Grid()


def asked(grid, nodes):
    return server_app.OverGrid(grid, blobs(), nodes, 1.0, timeout=1.0).ask([0, 1, 2, 3], {}, NOW)


def test_clients_are_told_what_they_are_charged_for(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    assert nodes.sizes == [40, 41, 42, 43]
    asked(grid, nodes)
    assert [(node, words["examples"], words["noise_multiplier"]) for node, words in grid.asked] == [
        (10 + client, 40 + client, 1.0) for client in range(4)
    ]


def test_answers_that_are_errors_or_cannot_be_read_are_named_and_lose_no_other(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    grid.answers = [
        Reply(1, code=3),  # Flower's own, about a node that is away: no client's
        Reply(10, pack({"increment": {"x": torch.ones(1)}}, {})),
        Reply(11, code=5),
        Reply(12, RecordDict()),
    ]
    answers = asked(grid, nodes)
    assert torch.equal(answers[0]["increment"]["x"], torch.ones(1))
    assert answers[1] == "Flower's error 5"
    assert "cannot be read" in answers[2]
    assert 3 not in answers


def test_a_node_that_started_anew_is_found_again_if_it_has_the_same_data(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    del grid.nodes[12]
    grid.nodes[99] = 2
    asked(grid, nodes)
    assert [node for node, _ in grid.asked] == [10, 11, 99, 13]
    del grid.nodes[99]
    grid.nodes[100], grid.sizes[2] = 2, 7
    asked(grid, nodes)
    assert [node for node, _ in grid.asked] == [10, 11, 99, 13]  # it is away


def test_a_node_that_takes_the_number_of_another_does_not_end_a_training(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    del grid.nodes[12]
    grid.nodes[99] = 1
    asked(grid, nodes)
    assert [node for node, _ in grid.asked] == [10, 11, 12, 13]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "reason"),
    [("ValueError", "Node 12: ValueError"), (1, "Node 12: another node has partition-id=1")],
)
def test_a_training_begins_without_a_node_that_cannot_take_part_and_names_it(said, reason, grid, caplog):
    grid.nodes[12] = said
    nodes = server_app.Nodes(grid, blobs(), timeout=0.1)
    assert nodes.sizes == [40, 41, 0, 43]
    assert nodes.ids == {0: 10, 1: 11, 3: 13}
    assert "without clients [2]" in caplog.text
    assert reason in caplog.text


@pytest.mark.slow
def test_nodes_that_are_not_there_are_named(grid):
    del grid.nodes[12]
    with pytest.raises(RuntimeError, match=r"did not come up in 0.1 seconds: \[2\]"):
        server_app.Nodes(grid, blobs(), timeout=0.1)
    grid.nodes = dict.fromkeys(range(10, 14), "OSError")
    with pytest.raises(RuntimeError, match=r"\[0, 1, 2, 3\]. Node 10: OSError"):
        server_app.Nodes(grid, blobs(), timeout=0.1)


# --- whole trainings ------------------------------------------------------------------------------------


def adamas_federated(out, *arguments, code=0, **environment) -> subprocess.CompletedProcess:
    command = [
        *(
            "federated",
            "run",
            "--task",
            "tests.support.federated_blobs",
            "--clients",
            "4",
            "--participation",
            "1",
        ),
        *("--rounds", "2", "--local-steps", "2", "--batch-size", "10", "--noise-multiplier", "1"),
        *("--delta", "1e-3", "--accountant", "rdp", "--seed", "0", "--out", str(out), *arguments),
    ]
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-m", "adamas", *command], env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    return done


def same_model(left: Path, right: Path) -> bool:
    mine, others = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


@pytest.mark.ray
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


@pytest.mark.ray
def test_if_all_clients_fail_flowers_simulation_ends_with_an_error_and_a_state(tmp_path):
    done = adamas_federated(tmp_path, code=2, FAILING_CLIENTS="0,1,2,3")
    assert "Round 0 has no update that can be used. client 0: ArithmeticError" in done.stderr
    assert not (tmp_path / "result.json").exists()
    assert saved_state(tmp_path)["asked"] == [1] * 4


@pytest.mark.ray
def test_two_nodes_on_sockets_give_what_one_process_gives(tmp_path):
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
