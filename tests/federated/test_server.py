"""The server: which clients it asks, which answers it takes, which settings and clients it refuses."""

import math
import re

import pytest
import torch
from torch import nn

from adamas.federated import ALGORITHMS, InProcess, NoAnswerError, Plan
from tests.support.federated_regression import FEATURES, REFERENCES, make_client
from tests.support.federated_servers import (
    PLAN,
    failing_loss,
    increment,
    make_clients,
    make_server,
    simulate,
)


def test_each_round_asks_a_fixed_number_of_clients_drawn_from_the_seed():
    server, again, other = make_server(), make_server(), make_server(seed=1)
    chosen = []
    for one in (server, again, other):
        mine = []
        for _ in range(5):
            clients, _ = one.open_round()
            assert len(clients) == 2
            mine.append(clients)
            one.close_round({client: increment() for client in clients})
        chosen.append(mine)
    assert chosen[0] == chosen[1] != chosen[2]
    assert len({client for clients in chosen[0] for client in clients}) > 2
    assert not len(server)
    with pytest.raises(RuntimeError, match="All 5 rounds are finished"):
        server.open_round()


def test_clients_receive_only_what_the_algorithm_sends():
    for name, algorithm in ALGORITHMS.items():
        made = algorithm(**REFERENCES[name][1])
        server = make_server(made, plan=Plan(**PLAN, queries=made.queries))
        _, records = server.open_round()
        assert tuple(records) == server.algorithm.sends


def test_the_sum_of_answers_is_divided_by_the_expected_number_of_clients():
    server = make_server()
    before = server.model.weight.detach().clone()
    clients, _ = server.open_round()
    report = server.close_round({clients[0]: increment(4.0)})
    assert report.answered == clients[:1]
    assert report.left_out == {clients[1]: "no answer"}
    torch.testing.assert_close(server.model.weight.detach(), before + 4.0 / 2)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("timeout after 60 s", "timeout after 60 s"),
        (
            {"increment": {"weight": torch.zeros(2, dtype=torch.float64)}},
            r"increment\['weight'\] of shape \(5,\), got \(2,\)",
        ),
        ({"increment": {"bias": torch.zeros(5)}}, "missing or unknown: bias, weight"),
        ({}, "records of the same training; missing or unknown: increment"),
        (increment() | {"gradient": {}}, "records .* missing or unknown: gradient"),
        (increment(math.nan), r"increment\['weight'\] of finite values"),
        (increment(math.inf), r"increment\['weight'\] of finite values"),
    ],
)
def test_a_bad_answer_is_left_out_with_its_reason_and_its_client_is_charged(answer, reason):
    server = make_server()
    clients, _ = server.open_round()
    report = server.close_round({clients[0]: answer, clients[1]: increment()})
    assert report.answered == clients[1:]
    assert list(report.left_out) == [clients[0]]
    assert re.search(reason, report.left_out[clients[0]])
    assert [server.asked[client] for client in clients] == [1, 1]
    assert bool(torch.isfinite(server.model.weight).all())


def test_a_round_without_any_answer_raises_and_keeps_the_model():
    server = make_server()
    before = server.model.weight.detach().clone()
    clients, _ = server.open_round()
    with pytest.raises(NoAnswerError, match=f"Round 0 has no update .*client {clients[0]}: power cut"):
        server.close_round({clients[0]: "power cut"})
    assert torch.equal(server.model.weight.detach(), before)
    assert server.epsilon() > 0
    assert server.round == 1


def test_opening_and_closing_rounds_must_alternate():
    server = make_server()
    with pytest.raises(RuntimeError, match="open_round before close_round"):
        server.close_round({})
    clients, _ = server.open_round()
    with pytest.raises(RuntimeError, match="close_round before the next"):
        server.open_round()
    stranger = next(iter(set(range(4)) - set(clients)))
    with pytest.raises(ValueError, match=rf"got some of \[{stranger}\]"):
        server.close_round({stranger: increment()})
    assert (
        server.close_round({client: increment() for client in clients}).answered == clients
    )  # the round was still open


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": 0.0}, "participation=0.0"),
        ({"batch_size": 7}, r"batch_size=7 examples each, got \[6, 7, 8, 9\]"),
        ({"sizes": ()}, "at least batch_size=3 examples each"),
        ({"sizes": (5, 6)}, r"sampling_rate=0.5 is at least .* = 0.6"),
        ({"algorithm": ALGORITHMS["dp-fedsam"]()}, "queries=2, the releases that FedSAM .* got queries=1"),
        ({"plan": Plan(**PLAN, participation=0.5)}, "seed=None with a plan that counts on participation"),
        (
            {"plan": Plan(**PLAN, participation=0.25), "seed": None},
            "participation=0.25 is at least 2 of 4 clients",
        ),
        ({"plan": Plan(**PLAN | {"delta": 0.2})}, "delta=0.2 < 0.111, one over .* examples of the largest"),
        (
            {"plan": Plan(unit="client", rounds=5, sampling_rate=0.25, delta=1e-5)},
            "sampling_rate=0.25 is at least 2 of 4 clients",
        ),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_server(**options)


@pytest.mark.parametrize(("name", "value"), [("noise_multiplier", 0.5), ("batch_size", 2)])
def test_clients_that_would_release_more_than_is_charged_are_refused(name, value):
    clients = make_clients()
    setattr(clients[1], name, value)
    with pytest.raises(ValueError, match=f"client 1 with {name}=.* as the server charges, got {value}"):
        InProcess(make_server(), clients)


def test_clients_of_other_sizes_than_the_servers_are_refused():
    with pytest.raises(ValueError, match=r"clients with \[6, 7, 8, 9\] examples, got \[6, 7, 8\]"):
        simulate(make_server(), make_clients()[:3], seed=0)


def test_a_failing_client_is_left_out_and_training_continues():
    clients = make_clients()
    clients[2].loss = failing_loss
    reports = []
    server = make_server(participation=1.0)
    simulate(server, clients, seed=0, closed=reports.append)
    assert [report.answered for report in reports] == [(0, 1, 3)] * 5
    assert all(report.left_out == {2: "OSError"} for report in reports), "a message could quote examples"
    assert server.asked == [5, 5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_result_follows_from_the_seed(name):
    results = []
    for seed in (3, 3, 4):
        algorithm = ALGORITHMS[name](**REFERENCES[name][1])
        server = make_server(algorithm, plan=Plan(**PLAN, queries=algorithm.queries), seed=seed)
        simulate(server, make_clients(), seed=seed)
        results.append(server.model.weight.detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_server_continues_from_a_saved_state():
    whole, clients = make_server(), make_clients()
    simulate(whole, clients, seed=0)

    first, kept = make_server(), make_clients()
    for _ in range(2):
        chosen, records = first.open_round()
        first.close_round(InProcess(first, kept, 0).ask(chosen, records, first.now))
    saved = first.state_dict()
    second = make_server()
    second.load_state_dict(saved)
    simulate(second, kept, seed=0)
    assert torch.equal(second.model.weight, whole.model.weight)
    assert second.asked == whole.asked
    assert second.epsilons() == whole.epsilons()
    with pytest.raises(RuntimeError, match="has not opened a round"):
        second.load_state_dict(saved)
    with pytest.raises(ValueError, match="seed=1, got 0"):
        make_server(seed=1).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"sizes=\[6, 7\], got \[6, 7, 8, 9\]"):
        make_server(sizes=(6, 7)).load_state_dict(saved)


@pytest.mark.parametrize(
    ("aggregation", "numbers"),
    [("blocks", 14 + 2), ("coordinates", 2 * 14), ("local", 14)],
)
def test_an_upload_is_the_parameters_and_the_second_moments_of_the_aggregation(aggregation, numbers):
    class TwoLayers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(FEATURES, 2, dtype=torch.float64), nn.Linear(2, 1, False)
            self.second.double()

        def forward(self, x):
            return self.second(self.first(x)).squeeze(1)

    algorithm = ALGORITHMS["dp-fedadamw"](aggregation=aggregation)
    client = make_client(0, batch_size=3, noise_multiplier=1.0, clip_norm=1.0, seed=0)
    client.model = TwoLayers()
    server = make_server(algorithm, model=TwoLayers(), participation=0.25)
    _, records = server.open_round()
    update = algorithm.train(client, records, server.now)
    assert sum(value.numel() for arrays in update.values() for value in arrays.values()) == numbers
