"""The server charges every round asked, adds noise if the unit is a client, and hides secret choices."""

import math
from dataclasses import replace

import pytest
import torch

from adamas import UnsupportedError, calibrate
from adamas.federated import ALGORITHMS, NoAnswerError, Plan
from tests.support.federated_regression import FEATURES, REFERENCES, Regression
from tests.support.federated_servers import (
    PLAN,
    SIZES,
    failing_loss,
    increment,
    make_clients,
    make_server,
    simulate,
)


def test_a_client_is_charged_for_the_rounds_that_asked_it():
    server = make_server()
    simulate(server, make_clients(), seed=0)
    assert sum(server.asked) == 10
    for size, rounds, epsilon in zip(SIZES, server.asked, server.epsilons(), strict=True):
        expected = 0.0
        if rounds:
            expected = calibrate.epsilon(
                noise_multiplier=1.0, sampling_rate=3 / size, steps=2 * rounds, delta=1e-5, accountant="rdp"
            )
        assert epsilon == pytest.approx(expected)
    assert server.epsilon() == max(server.epsilons()) < server.plan.epsilon(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "dp-fafed"])
def test_the_ledgers_of_the_clients_agree_with_the_server(name):
    algorithm = ALGORITHMS[name](**REFERENCES[name][1])
    server = make_server(algorithm, plan=Plan(**PLAN, queries=algorithm.queries))
    clients = make_clients()
    simulate(server, clients, seed=0)
    for client, epsilon in zip(clients, server.epsilons(), strict=True):
        own = client.ledger.epsilon(1e-5, "rdp") if client.ledger.entries else 0.0
        assert own == pytest.approx(epsilon)


def test_epsilon_is_the_largest_over_all_clients():
    server = make_server(sizes=(6, 30, 60, 90))
    for asked in ([0, 0, 0, 0], [1, 2, 3, 5], [2, 2, 2, 2], [4, 5, 5, 5], [5, 1, 0, 0]):
        server.asked = asked
        assert server.epsilon() == max(server.epsilons())


def test_without_noise_epsilon_is_infinite():
    server = make_server(noise_multiplier=0.0)
    clients, _ = server.open_round()
    server.close_round({client: increment() for client in clients})
    assert server.epsilon() == math.inf


def test_with_unit_client_the_server_clips_updates_and_adds_the_noise_it_charges():
    """The mean square of 1,000 normal values is over 5 standard deviations from 1 with probability 6e-7."""
    plan = Plan(unit="client", rounds=200, sampling_rate=0.5, delta=1e-5)
    server = make_server(plan=plan, noise_multiplier=2.0, clip_norm=0.5, model=Regression())
    scale = 2.0 * 0.5 / 2  # noise multiplier times clip norm over expected clients
    squares, counts = [], []
    for _ in range(200):
        clients, _ = server.open_round()
        before = server.model.weight.detach().clone()
        answers = {client: increment(100.0) for client in clients}  # of norm 100 sqrt(5)
        server.close_round(answers)
        clipped = len(clients) * 0.5 / math.sqrt(FEATURES) / 2
        squares.append(((server.model.weight.detach() - before - clipped) / scale).square())
        counts.append(len(clients))
    mean = float(torch.cat(squares).mean())
    assert abs(mean - 1) < 5 * math.sqrt(2 / 1000)
    assert not abs(mean * 1.5 - 1) < 5 * math.sqrt(2 / 1000)
    assert {0, 4} & set(counts), "each client is drawn independently, so the number varies"
    assert server.state_dict()["asked"] == [0] * 4, "participation is private"
    expected = calibrate.epsilon(noise_multiplier=2.0, sampling_rate=0.5, steps=200, delta=1e-5)
    assert server.epsilons() == [expected] * 4


def test_a_round_that_asks_nobody_releases_noise_and_is_charged():
    plan = Plan(unit="client", rounds=50, sampling_rate=0.25, delta=1e-5)
    server = make_server(plan=plan, participation=0.25, noise_multiplier=1.0)
    for _ in range(50):
        clients, _ = server.open_round()
        before = server.model.weight.detach().clone()
        server.close_round({client: increment(0.0) for client in clients})
        assert not torch.equal(server.model.weight.detach(), before)
        if not clients:
            break
    else:
        pytest.fail("at 25 %, a third of the rounds should ask none of the 4 clients")
    assert sum(count for _, count in server.ledger.entries) == server.round


def test_with_unit_client_a_round_without_a_usable_answer_releases_noise_and_is_charged():
    plan = Plan(unit="client", rounds=5, sampling_rate=1.0, delta=1e-5, accountant="rdp")
    server = make_server(plan=plan, participation=1.0, seed=None)
    before = server.model.weight.detach().clone()
    clients, _ = server.open_round()
    assert server.close_round(dict.fromkeys(clients, "power cut")).answered == ()
    assert not torch.equal(server.model.weight.detach(), before)
    assert server.epsilon() == pytest.approx(replace(plan, rounds=1).epsilon(1.0))
    assert server.lost == 0
    clients = make_clients(noise_multiplier=0.0)
    for client in clients:
        client.loss = failing_loss
    with pytest.raises(NoAnswerError, match="All clients were asked, and none gave") as error:
        simulate(server, clients, seed=0)
    assert "client 0" not in str(error.value)


@pytest.mark.parametrize("name", ["dp-fedadamw", "dp-scaffold", "dp-fedlada", "dp-fafed"])
def test_unit_client_is_refused_for_algorithms_that_upload_more_than_increments(name):
    plan = Plan(unit="client", rounds=5, sampling_rate=0.5, delta=1e-5)
    with pytest.raises(UnsupportedError, match=r"unit='client' .* Use unit='record'"):
        make_server(ALGORITHMS[name](), plan=plan)


def test_counting_on_participation_is_refused_if_clients_keep_state():
    with pytest.raises(UnsupportedError, match=r"clients of Scaffold remember.*count_on_participation=False"):
        make_server(ALGORITHMS["dp-scaffold"](), plan=Plan(**PLAN, participation=0.5), seed=None)


def test_an_error_does_not_name_the_clients_asked_where_participation_is_secret():
    server = make_server(plan=Plan(**PLAN, participation=1.0), participation=1.0, seed=None)
    clients, _ = server.open_round()
    with pytest.raises(NoAnswerError, match="Round 0 has no update") as error:
        server.close_round(dict.fromkeys(clients, "power cut"))
    assert "client 0" not in str(error.value)
    assert server.asked == [0] * len(SIZES)
    assert server.now.lost == 1
