"""A client probes model, loss and data once, and its later runs equal those of `make_private`."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import adamas
from adamas import rules
from adamas.errors import UnsupportedError
from adamas.federated import ALGORITHMS, Client, Round
from tests.support.federated_regression import REFERENCES, STEPS, Regression, loss, make_client

OPTIONS = {"batch_size": 3, "noise_multiplier": 1.0, "clip_norm": 1.0}


class Counted(Dataset):
    """Counts reads of examples, which probes and releases make."""

    def __init__(self, examples: TensorDataset) -> None:
        self.examples, self.reads = examples, 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int):
        self.reads += 1
        return self.examples[index]


def reads_of(client: Client, rounds: int, name: str = "dp-fedavg") -> list[float]:
    """Trains a client, and returns for each round how often all its examples were read."""
    algorithm = ALGORITHMS[name](**REFERENCES[name][1])
    received = algorithm.broadcast(algorithm.start(Regression()))
    counts = []
    for number in range(rounds):
        before, client.seed = client.dataset.reads, number
        algorithm.train(client, received, Round(number, rounds, STEPS))
        counts.append((client.dataset.reads - before) / len(client.dataset))
    return counts


def counted_client(**options) -> Client:
    """Makes a client that takes all its examples in each step, and counts reads."""
    client = make_client(0, **{"noise_multiplier": 1.0, "clip_norm": 1.0} | options)
    client.dataset = Counted(client.dataset)
    return client


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_probes_in_its_first_round_only(name):
    client = counted_client()
    queries = STEPS * ALGORITHMS[name].queries - (1 if name == "dp-fafed" else 0)
    first, *others = reads_of(client, 4, name)
    assert first > queries
    assert others == [queries] * 3  # only releases read, each all examples once


def test_each_client_probes_its_own_data():
    clients = [counted_client() for _ in range(3)]
    for client in clients[1:]:
        client.model = clients[0].model  # as in a simulation
    for client in clients:
        assert reads_of(client, 1)[0] > STEPS
    assert [reads_of(client, 1)[0] for client in clients] == [STEPS] * 3


def other_data(client: Client) -> None:
    client.dataset = Counted(client.dataset.examples)


def other_model(client: Client) -> None:
    client.model = copy.deepcopy(client.model)


def other_loss(client: Client) -> None:
    client.loss = lambda model, batch: loss(model, batch)


def other_mode(client: Client) -> None:
    client.model.eval()


def other_structure(client: Client) -> None:
    client.model.register_buffer("offset", torch.zeros(1))


def other_engine(client: Client) -> None:
    client.options["engine"] = "bookkeeping"


def other_noise(client: Client) -> None:
    client.noise_multiplier = 2.0


@pytest.mark.parametrize(
    "change",
    [other_data, other_model, other_loss, other_mode, other_structure, other_engine, other_noise],
)
def test_a_client_probes_again_after_a_change(change):
    client = counted_client()
    assert reads_of(client, 2)[1] == STEPS
    change(client)
    first, second = reads_of(client, 2)
    assert first > STEPS
    assert second == STEPS


@pytest.mark.parametrize("engine", ["bookkeeping", "loop"])
@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_a_run_without_probes_equals_that_of_make_private(engine, micro_batch_size):
    options = {"engine": engine, "micro_batch_size": micro_batch_size}
    client = make_client(0, **OPTIONS, options=options)
    client.train(rules.SGD(client.model.parameters(), lr=0.1), STEPS)  # probes
    model = copy.deepcopy(client.model)
    client.seed = 7
    with client.private_run(rules.AdamBC(client.model.parameters(), lr=0.1), STEPS) as run:
        releases = [step.release for step in run]
    other = adamas.make_private(
        model,
        rules.AdamBC(model.parameters(), lr=0.1),
        client.dataset,
        loss,
        **OPTIONS,
        delta=client.delta,
        steps=STEPS,
        seed=7,
        **options,
    )
    expected = [step.release for step in other]
    assert len(releases) == len(expected) == STEPS
    for mine, theirs in zip(releases, expected, strict=True):
        assert torch.equal(mine.mean[client.model.weight], theirs.mean[model.weight])
        assert mine.noise_variance[client.model.weight] == theirs.noise_variance[model.weight]
    assert torch.equal(client.model.weight, model.weight)
    assert run.ledger.entries == other.ledger.entries
    assert run.epsilon() == other.epsilon()
    assert run.private == other.private
    with pytest.raises(adamas.errors.BudgetError, match="beyond the 3 steps"):
        run.privatize(next(run.loader.batches(STEPS, STEPS + 1)))


def test_a_release_is_checked_even_without_probes():
    """A model that starts to mix examples after the probes is refused."""

    class Mixing(Regression):
        mixes = False

        def forward(self, x):
            y = super().forward(x)
            return y - y.mean() if self.mixes else y

    client = make_client(0, **OPTIONS, seed=0)
    client.model = Mixing()
    client.train(rules.SGD(client.model.parameters(), lr=0.1), 1)
    client.model.mixes = True
    spent = client.ledger.copy().entries
    with pytest.raises(UnsupportedError):
        client.train(rules.SGD(client.model.parameters(), lr=0.1), 1)
    assert client.ledger.entries == spent  # nothing was released
    with pytest.raises(UnsupportedError):  # now the probes refuse it, whatever the engine
        client.train(rules.SGD(client.model.parameters(), lr=0.1), 1)
    client.model.mixes = False
    client.train(rules.SGD(client.model.parameters(), lr=0.1), 1)


def test_rule_and_steps_are_checked_even_without_probes():
    client = make_client(0, **OPTIONS, seed=0)
    client.train(rules.SGD(client.model.parameters(), lr=0.1), 1)
    with pytest.raises(ValueError, match="Expected the rule to hold"):
        client.train(rules.SGD([nn.Parameter(torch.zeros(2))], lr=0.1), 1)
    with pytest.raises(ValueError, match="steps=0"):
        client.train(rules.SGD(client.model.parameters(), lr=0.1), 0)
