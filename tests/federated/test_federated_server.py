"""The server: whom it asks, which answers it takes, what it charges; and whole trainings in one process."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from adamas import UnsupportedError, calibrate
from adamas.federated import ALGORITHMS, InProcess, NoAnswerError, Plan, Server, run_rounds
from tests.support.federated_regression import FEATURES, REFERENCES, Regression, make_client

SIZES = (6, 7, 8, 9)
PLAN = {"rounds": 5, "local_steps": 2, "sampling_rate": 3 / 6, "delta": 1e-5, "accountant": "rdp"}


def make_server(algorithm=None, *, model=None, plan=None, **options) -> Server:
    defaults = {
        "sizes": SIZES,
        "plan": plan or Plan(**PLAN),
        "batch_size": 3,
        "participation": 0.5,
        "noise_multiplier": 1.0,
        "seed": 0,
    }
    return Server(algorithm or ALGORITHMS["dp-fedavg"](lr=0.05), model or Regression(), **defaults | options)


def make_clients(**options):
    settings = {"batch_size": 3, "noise_multiplier": 1.0, "clip_norm": 1.0} | options
    return [make_client(number, **settings) for number in range(len(SIZES))]


def increment(value=1.0):
    return {"increment": {"weight": torch.full((FEATURES,), value, dtype=torch.float64)}}


def simulate(server, clients, *, seed, closed=lambda _: None):
    run_rounds(server, InProcess(server, clients, seed), closed=closed)


# --- rounds ---------------------------------------------------------------------------------------------


def test_a_fixed_number_of_clients_is_asked_at_random_and_the_choice_follows_the_seed():
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


def test_clients_get_what_the_algorithm_sends_and_nothing_else():
    for name, algorithm in ALGORITHMS.items():
        made = algorithm(**REFERENCES[name][1])
        server = make_server(made, plan=Plan(**PLAN, queries=made.queries))
        _, records = server.open_round()
        assert tuple(records) == server.algorithm.sends


def test_answers_are_summed_over_the_expected_number_however_many_come():
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
def test_a_bad_answer_is_left_out_and_named_and_its_client_is_charged(answer, reason):
    server = make_server()
    clients, _ = server.open_round()
    report = server.close_round({clients[0]: answer, clients[1]: increment()})
    assert report.answered == clients[1:]
    assert list(report.left_out) == [clients[0]]
    assert re.search(reason, report.left_out[clients[0]])
    assert [server.asked[client] for client in clients] == [1, 1]
    assert bool(torch.isfinite(server.model.weight).all())


def test_a_round_without_any_answer_is_an_error_and_leaves_the_state():
    server = make_server()
    before = server.model.weight.detach().clone()
    clients, _ = server.open_round()
    with pytest.raises(NoAnswerError, match=f"Round 0 has no update .*client {clients[0]}: power cut"):
        server.close_round({clients[0]: "power cut"})
    assert torch.equal(server.model.weight.detach(), before)
    assert server.epsilon() > 0
    assert server.round == 1


def test_rounds_are_opened_and_closed_in_turn():
    server = make_server()
    with pytest.raises(RuntimeError, match="open_round before close_round"):
        server.close_round({})
    clients, _ = server.open_round()
    with pytest.raises(RuntimeError, match="close_round before the next"):
        server.open_round()
    stranger = next(iter(set(range(4)) - set(clients)))
    with pytest.raises(ValueError, match=rf"got some of \[{stranger}\]"):
        server.close_round({stranger: increment()})
    assert server.close_round({client: increment() for client in clients}).answered == clients  # still open


# --- privacy --------------------------------------------------------------------------------------------


def test_a_client_is_charged_for_the_rounds_in_which_it_was_asked():
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
def test_the_clients_own_ledgers_agree_with_the_server(name):
    algorithm = ALGORITHMS[name](**REFERENCES[name][1])
    server = make_server(algorithm, plan=Plan(**PLAN, queries=algorithm.queries))
    clients = make_clients()
    simulate(server, clients, seed=0)
    for client, epsilon in zip(clients, server.epsilons(), strict=True):
        own = client.ledger.epsilon(1e-5, "rdp") if client.ledger.entries else 0.0
        assert own == pytest.approx(epsilon)


def test_with_unit_client_the_server_clips_whole_updates_and_adds_the_noise_that_it_charges():
    """The mean square of 1,000 normal values is within 5 standard deviations of 1 but for 6e-7."""
    plan = Plan(unit="client", rounds=200, sampling_rate=0.5, delta=1e-5)
    server = make_server(plan=plan, noise_multiplier=2.0, clip_norm=0.5, model=Regression())
    scale = 2.0 * 0.5 / 2  # noise multiplier, clip norm, expected clients
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
    assert {0, 4} & set(counts), "clients are drawn by coins, not by number"
    assert server.state_dict()["asked"] == [0] * 4, "who took part is private"
    expected = calibrate.epsilon(noise_multiplier=2.0, sampling_rate=0.5, steps=200, delta=1e-5)
    assert server.epsilons() == [expected] * 4


def test_a_round_of_nobody_is_noise_and_is_charged():
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
        pytest.fail("25 % of 4 clients is nobody in a third of the rounds")
    assert sum(count for _, count in server.ledger.entries) == server.round


@pytest.mark.parametrize("name", ["dp-fedadamw", "dp-scaffold", "dp-fedlada", "dp-fafed"])
def test_more_than_increments_cannot_be_hidden_by_the_server(name):
    plan = Plan(unit="client", rounds=5, sampling_rate=0.5, delta=1e-5)
    with pytest.raises(UnsupportedError, match=r"unit='client' .* Use unit='record'"):
        make_server(ALGORITHMS[name](), plan=plan)


def test_without_noise_epsilon_is_infinite():
    server = make_server(noise_multiplier=0.0)
    clients, _ = server.open_round()
    server.close_round({client: increment() for client in clients})
    assert server.epsilon() == math.inf


# --- settings -------------------------------------------------------------------------------------------


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


# --- whole trainings ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_training_depends_on_its_seed_alone(name):
    results = []
    for seed in (3, 3, 4):
        algorithm = ALGORITHMS[name](**REFERENCES[name][1])
        server = make_server(algorithm, plan=Plan(**PLAN, queries=algorithm.queries), seed=seed)
        simulate(server, make_clients(), seed=seed)
        results.append(server.model.weight.detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_server_goes_on_from_a_saved_state():
    whole, clients = make_server(), make_clients()
    simulate(whole, clients, seed=0)

    first, kept = make_server(), make_clients()
    for _ in range(2):
        one_round(first, kept)
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


def one_round(server, clients):
    chosen, records = server.open_round()
    server.close_round(InProcess(server, clients, 0).ask(chosen, records, server.now))


def test_a_client_that_fails_is_left_out_and_the_training_goes_on():
    clients = make_clients()
    clients[2].loss = lambda model, batch: (_ for _ in ()).throw(OSError("disk gone"))
    reports = []
    server = make_server(participation=1.0)
    simulate(server, clients, seed=0, closed=reports.append)
    assert [report.answered for report in reports] == [(0, 1, 3)] * 5
    assert all(report.left_out == {2: "OSError"} for report in reports), "the text could contain examples"
    assert server.asked == [5, 5, 5, 5]


@pytest.mark.parametrize(("name", "value"), [("noise_multiplier", 0.5), ("batch_size", 2)])
def test_clients_that_would_release_more_than_is_charged_are_refused(name, value):
    clients = make_clients()
    setattr(clients[1], name, value)
    with pytest.raises(ValueError, match=f"client 1 with {name}=.* as the server charges, got {value}"):
        InProcess(make_server(), clients)


def test_the_clients_must_be_those_of_the_server():
    with pytest.raises(ValueError, match=r"clients with \[6, 7, 8, 9\] examples, got \[6, 7, 8\]"):
        simulate(make_server(), make_clients()[:3], seed=0)


# --- what travels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "numbers"),
    [("blocks", 14 + 2), ("coordinates", 2 * 14), ("local", 14)],
)
def test_an_upload_is_the_parameters_and_one_number_per_block(aggregation, numbers):
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


# --- what must not be known or counted on ---------------------------------------------------------------


def test_where_the_choice_is_secret_an_error_does_not_name_who_was_asked():
    server = make_server(plan=Plan(**PLAN, participation=1.0), participation=1.0, seed=None)
    clients, _ = server.open_round()
    with pytest.raises(NoAnswerError, match="Round 0 has no update") as error:
        server.close_round(dict.fromkeys(clients, "power cut"))
    assert "client 0" not in str(error.value)
    assert server.asked == [0] * len(SIZES)
    assert server.now.lost == 1


def test_with_unit_client_a_round_without_a_usable_answer_is_noise_and_is_charged():
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
        client.loss = lambda model, batch: (_ for _ in ()).throw(OSError("disk gone"))
    with pytest.raises(NoAnswerError, match="All clients were asked, and none gave") as error:
        simulate(server, clients, seed=0)
    assert "client 0" not in str(error.value)


def test_a_bound_that_counts_on_participation_is_refused_for_clients_that_remember():
    with pytest.raises(UnsupportedError, match=r"clients of Scaffold remember.*count_on_participation=False"):
        make_server(ALGORITHMS["dp-scaffold"](), plan=Plan(**PLAN, participation=0.5), seed=None)


def test_the_worst_epsilon_is_that_of_all_clients():
    server = make_server(sizes=(6, 30, 60, 90))
    for asked in ([0, 0, 0, 0], [1, 2, 3, 5], [2, 2, 2, 2], [4, 5, 5, 5], [5, 1, 0, 0]):
        server.asked = asked
        assert server.epsilon() == max(server.epsilons())
