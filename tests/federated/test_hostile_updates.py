"""The server leaves out hostile updates, and its state keeps finite values of the same dtypes."""

import pytest
import torch

from adamas.federated import ALGORITHMS, InProcess
from adamas.federated.task import make_task
from adamas.federated.training import client_sizes, in_process, make_server, train
from tests.support import federated_blobs
from tests.support.federated_runs import blobs, lines, run, saved_state
from tests.support.hostile_client import HOSTILE, assert_unharmed, everybody

pytestmark = pytest.mark.slow  # a quarter of a second each


class OneHostileClient(InProcess):
    """Clients in this process, one of which changes its update as a test says."""

    def __init__(self, real, answer):
        self._real, self._answer = real, answer

    def sizes(self):
        return self._real.sizes()

    def ask(self, clients, records, round):
        answers = dict(self._real.ask(clients, records, round))
        if HOSTILE in clients:
            answers[HOSTILE] = self._answer(answers[HOSTILE])
        return answers


def weight(make):
    return lambda update: (
        update | {"increment": update["increment"] | {"weight": make(update["increment"]["weight"])}}
    )


class Subclass(torch.Tensor):
    pass


OBJECTS = {
    "None": lambda update: None,
    "a list": lambda update: [update],
    "a tensor": lambda update: update["increment"]["weight"],
    "a record is a list": lambda update: update | {"increment": [1.0]},
    "a record is None": lambda update: update | {"increment": None},
    "names are numbers": lambda update: {1: update["increment"]},
    "a number instead of a tensor": weight(lambda value: 1.0),
    "a NumPy array": weight(lambda value: value.numpy()),
    "sparse": weight(lambda value: value.to_sparse()),
    "sparse rows": weight(lambda value: value.to_sparse_csr()),
    "nested": weight(lambda value: torch.nested.nested_tensor(list(value))),
    "quantized": weight(lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)),
    "complex": weight(lambda value: value.to(torch.complex64)),
    "on the meta device": weight(lambda value: value.to("meta")),
    "a subclass": weight(lambda value: value.as_subclass(Subclass)),
    "with requires_grad": weight(lambda value: value.clone().requires_grad_()),
}


@pytest.mark.filterwarnings("ignore")  # torch warns about some of these tensors
@pytest.mark.parametrize("name", OBJECTS)
def test_a_hostile_update_is_left_out_and_training_continues(name, tmp_path):
    settings = everybody()
    task = make_task(settings)
    train(
        settings,
        task,
        tmp_path,
        sizes=client_sizes(settings, task),
        connect=lambda server: OneHostileClient(in_process(server, settings, task), OBJECTS[name]),
    )
    assert_unharmed(tmp_path, settings, asked=[2, 2, 2, 2])


def test_a_hostile_client_is_not_named_where_participation_is_secret(tmp_path, caplog):
    settings = everybody(unit="client", algorithm="dp-fedavg", seed=None)
    task = make_task(settings)

    def connect(server):
        return OneHostileClient(in_process(server, settings, task), OBJECTS["complex"])

    train(settings, task, tmp_path, sizes=client_sizes(settings, task), connect=connect)
    assert [line.keys() & {"answered", "left_out"} for line in lines(tmp_path)] == [set(), set()]
    assert f"lient {HOSTILE}" not in caplog.text
    state = saved_state(tmp_path)
    assert {value.dtype for value in state["state"]["parameters"].values()} == {torch.float32}
    assert sum(entry["count"] for entry in state["ledger"]["entries"]) + bool(state["ledger"]["open"]) == 2


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_round_that_asks_only_a_hostile_client_is_lost_and_training_continues(unit, tmp_path):
    settings = blobs(participation=0.25, rounds=12, local_steps=1, unit=unit, algorithm="dp-fedavg")
    task = make_task(settings)
    result = train(
        settings,
        task,
        tmp_path,
        sizes=client_sizes(settings, task),
        connect=lambda server: OneHostileClient(in_process(server, settings, task), OBJECTS["None"]),
    )
    assert result["rounds"] == 12
    assert len(lines(tmp_path)) == 12
    if unit == "record":
        assert 0 < result["lost_rounds"] < 12
        assert result["lost_rounds"] == result["rounds_asked"][HOSTILE]  # lost rounds are charged
    else:  # a lost round would reveal who was asked
        assert result["lost_rounds"] == 0
        assert result["epsilon"] == pytest.approx(settings.plan([40, 41, 42, 43]).epsilon(1.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_honest_rounds_keep_the_dtypes_of_the_state(algorithm, dtype, monkeypatch, tmp_path):
    make_model, loss = federated_blobs.make_model, federated_blobs.loss
    monkeypatch.setattr(federated_blobs, "make_model", lambda: make_model().to(dtype))
    monkeypatch.setattr(
        federated_blobs, "loss", lambda model, batch: loss(model, (batch[0].to(dtype), batch[1]))
    )
    monkeypatch.setattr(federated_blobs, "test_data", lambda: None)
    settings = everybody(algorithm=algorithm)
    run(settings, tmp_path)
    fresh = settings.make_algorithm().start(federated_blobs.make_model())
    state = saved_state(tmp_path)["state"]
    for name, arrays in fresh.items():
        assert {value.dtype for value in arrays.values()} == {value.dtype for value in state[name].values()}
    assert [line["answered"] for line in lines(tmp_path)] == [[0, 1, 2, 3]] * 2


def test_of_updates_whose_sum_overflows_the_largest_is_left_out(monkeypatch):
    make_model = federated_blobs.make_model
    monkeypatch.setattr(federated_blobs, "make_model", lambda: make_model().half())
    settings = everybody(algorithm="dp-fedavg")
    server = make_server(settings, make_task(settings), [40, 41, 42, 43])
    for taken in ((0, 1, 2, 3), (0, 2, 3)):
        clients, records = server.open_round()
        answers = {
            client: {
                "increment": {
                    name: torch.full_like(value, 6.5e4 if client == HOSTILE else 1.0)
                    for name, value in records["parameters"].items()
                }
            }
            for client in clients
        }
        for value in server.state["parameters"].values():
            value.fill_(0.0 if taken == (0, 1, 2, 3) else 6.0e4)
        assert server.close_round(answers).answered == taken
        assert all(bool(value.isfinite().all()) for value in server.state["parameters"].values())
