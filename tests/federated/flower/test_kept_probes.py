"""A process that handles several messages probes once per run, node and settings, and answers the same."""

import gc
import itertools
import os
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from torch.nn import functional as F

import adamas.federated.local_runs
from adamas.errors import UnsupportedError
from adamas.federated import ALGORITHMS
from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app
from adamas.federated.flower.kept_probes import KeptProbes
from adamas.federated.local_runs import Probe
from tests.support import federated_blobs
from tests.support.federated_regression import make_client
from tests.support.federated_runs import blobs
from tests.support.flower_nodes import node, trained

ROOT = Path(__file__).parents[3]
ROUNDS = [Round(number, 3, 2) for number in range(3)]


@pytest.fixture
def probes(monkeypatch):
    """Counts the runs that probe."""
    made, real = [], adamas.federated.local_runs.make_private

    def counted(*arguments, **options):
        made.append(options["engine"])
        return real(*arguments, **options)

    monkeypatch.setattr(adamas.federated.local_runs, "make_private", counted)
    return made


def starts_a_process(monkeypatch):
    client_app._task.cache_clear()
    monkeypatch.setattr(client_app, "_PROBES", KeptProbes())


def flat(records):
    return torch.cat([value.reshape(-1) for arrays in records.values() for value in arrays.values()])


def test_a_process_probes_in_the_first_round_of_a_node(probes):
    context = node()
    for number, now in enumerate(ROUNDS):
        trained(blobs(), context, round=now)
        assert len(probes) == 1, f"after round {number}"


def test_a_new_process_probes_again(probes, monkeypatch):
    context = node()
    for number, now in enumerate(ROUNDS, start=1):
        starts_a_process(monkeypatch)
        trained(blobs(), context, round=now)
        assert len(probes) == number


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({}, {"client": 1}),
        ({}, {"run": 2}),
        ({"engine": "loop"}, {}),
        ({"noise_multiplier": 2.0}, {}),
        ({"micro_batch_size": 4}, {}),
        ({"algorithm": "dp-fedsam"}, {}),
    ],
    ids=str,
)
def test_another_node_run_or_setting_probes_for_itself(settings, context, probes):
    trained(blobs(), node())
    before = len(probes)
    trained(blobs(**settings), node(**context))
    assert len(probes) > before


def other_loss(monkeypatch):
    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    monkeypatch.setattr(federated_blobs, "loss", loss)


def other_model(monkeypatch):
    plain = federated_blobs.make_model

    class Other(torch.nn.Linear):
        pass

    def make_model():
        other = Other(4, 3)
        other.load_state_dict(plain().state_dict())
        return other

    monkeypatch.setattr(federated_blobs, "make_model", make_model)


@pytest.mark.parametrize("change", [other_loss, other_model])
def test_another_model_or_loss_is_probed(change, probes, monkeypatch):
    context = node()
    trained(blobs(), context, round=ROUNDS[0])
    change(monkeypatch)
    trained(blobs(), context, round=ROUNDS[1])
    assert len(probes) == 2
    trained(blobs(), context, round=ROUNDS[2])
    assert len(probes) == 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nodes_of_one_process_answer_as_nodes_of_their_own_processes(algorithm, monkeypatch):
    """Two nodes and two runs take turns: neither the noise nor the memory of another shows in an answer."""
    settings = blobs(algorithm=algorithm)

    def answers(alone):
        contexts = {(run, client): node(client, run=run) for run in (1, 2) for client in (0, 1)}
        found = []
        for now, context in itertools.product(ROUNDS, contexts.values()):
            if alone:
                starts_a_process(monkeypatch)
            found.append(flat(trained(settings, context, round=now)[0]))
        return found

    alone = answers(alone=True)
    starts_a_process(monkeypatch)
    together = answers(alone=False)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_nothing_of_a_client_outlives_its_message(monkeypatch):
    held, plain = [], client_app.make_client

    def make_watched(*arguments):
        client = plain(*arguments)
        held.extend(map(weakref.ref, (client, client.model, client.dataset)))
        return client

    monkeypatch.setattr(client_app, "make_client", make_watched)
    trained(blobs(), node())
    gc.collect()
    assert [reference() for reference in held] == [None] * 3
    (probe,) = client_app._PROBES._kept.values()
    assert not list(tensors_in((probe.engine, probe.facts)))


def tensors_in(value):
    if isinstance(value, torch.Tensor | torch.utils.data.Dataset | torch.nn.Module):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in((*value.keys(), *value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def a_probe():
    return Probe("loop", lambda model, batch: None, ())


def test_the_probes_that_were_used_last_are_kept():
    kept = KeptProbes(most=2)
    for key in ("a", "b", "a", "c"):
        client = make_client(0)
        with kept.lent(key, client):
            client.adopt_probe(a_probe())
    assert list(kept._kept) == ["a", "c"]


def test_the_probe_of_a_refused_run_is_forgotten():
    kept, client = KeptProbes(), make_client(0)
    with kept.lent("a", client):
        client.adopt_probe(a_probe())
    client = make_client(0)
    with pytest.raises(UnsupportedError), kept.lent("a", client):  # noqa: PT012
        assert client.probe is not None
        client.forget_probe()
        raise UnsupportedError("mixes examples")
    assert not kept._kept


COUNTING_TASK = """
import os

import adamas.federated.local_runs as local_runs
from tests.support.federated_blobs import client_data, loss, make_model, test_data

make_private = local_runs.make_private


def counted(*arguments, **options):
    with open(os.environ["PROBES"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    return make_private(*arguments, **options)


local_runs.make_private = counted
"""

SIMULATES = """
import sys
from pathlib import Path

from adamas.federated.flower.simulation import simulate
from tests.support.federated_runs import blobs

settings = blobs(task="counting_task", participation=1.0, rounds=3)
simulate(settings, Path(sys.argv[1]), cores_per_client=1.0)
"""


@pytest.mark.ray
def test_an_actor_of_a_simulation_probes_once_for_each_node(tmp_path):
    """Each of 4 nodes trains in 3 rounds, on whichever actor is free."""
    (tmp_path / "counting_task.py").write_text(COUNTING_TASK)
    places = os.pathsep.join([str(ROOT), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    file = tmp_path / "probes"
    done = subprocess.run(
        [sys.executable, "-c", SIMULATES, str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1", "PROBES": str(file)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    by_actor = Counter(file.read_text().split())
    assert max(by_actor.values()) <= 4, "an actor probed more often than it has nodes"
