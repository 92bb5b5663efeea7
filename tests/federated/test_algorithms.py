"""Federated algorithms equal their published formulas in NumPy without noise, and central rules with noise.

The model is a linear regression, whose gradient is known in closed form. The references follow the formulas
of the papers and share no code with the package.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

import adamas
from adamas import rules
from adamas.federated import ALGORITHMS, Blocks, Client, FedAdamW, Round
from adamas.federated.fedavg_ls import smoothed
from tests.support.federated_regression import (
    CLIENTS,
    FEATURES,
    REFERENCES,
    ROUNDS,
    START,
    STEPS,
    Regression,
    loss,
    make_client,
)


def trained(algorithm, *, rounds: int = ROUNDS, clients=None) -> tuple[dict, list[Client]]:
    clients = clients or [make_client(number) for number in range(CLIENTS)]
    state = algorithm.start(Regression())
    for number in range(rounds):
        now = Round(number, rounds, STEPS)
        updates = [algorithm.train(client, algorithm.broadcast(state), now) for client in clients]
        assert all(tuple(update) == algorithm.uploads for update in updates)
        state = algorithm.aggregate(state, updates, expected=len(clients), clients=len(clients), round=now)
    return state, clients


WHOLE = np.zeros(FEATURES, dtype=int)
HALVES = np.array([0, 0, 1, 1, 1])
VARIANTS = {
    "dp-fedopt": [{"second_moment": kind} for kind in ("adam", "yogi", "adagrad")],
    "dp-fedadamw": [{"aggregation": kind} for kind in ("blocks", "coordinates", "local")],
}


def test_every_algorithm_has_a_reference():
    assert REFERENCES.keys() == ALGORITHMS.keys()


@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, variant) for name in REFERENCES for variant in VARIANTS.get(name, [{}])],
    ids=lambda value: value if isinstance(value, str) else "".join(map(str, value.values())),
)
def test_without_noise_an_algorithm_equals_its_reference(name, variant):
    reference, options = REFERENCES[name]
    state, _ = trained(ALGORITHMS[name](**options, **variant))
    more = {"blocks": WHOLE} if name == "dp-fedadamw" else {}
    expected = reference(**options, **variant, **more)
    np.testing.assert_allclose(state["parameters"]["weight"].numpy(), expected, rtol=1e-9)
    assert np.abs(expected - START).max() > 0.05, "nothing was trained"


def test_blocks_of_the_user_are_used():
    reference, options = REFERENCES["dp-fedadamw"]
    blocks = Blocks(Regression(), {"weight": torch.from_numpy(HALVES)})
    state, _ = trained(FedAdamW(**options, blocks=blocks))
    expected = reference(**options, aggregation="blocks", blocks=HALVES)
    np.testing.assert_allclose(state["parameters"]["weight"].numpy(), expected, rtol=1e-9)
    other = reference(**options, aggregation="blocks", blocks=WHOLE)
    assert np.abs(expected - other).max() > 1e-4


# --- with noise -----------------------------------------------------------------------------------------


def test_one_client_one_step_and_one_coordinate_per_block_is_central_adamw_bc():
    """beta1 = 0, since FedAdamW starts each round with m = 0 and central AdamW does not."""
    options = {"lr": 0.05, "betas": (0.0, 0.9), "weight_decay": 0.2, "floor": 1e-4}
    private = {"batch_size": 3, "noise_multiplier": 0.8, "clip_norm": 1.5, "delta": 1e-5}
    blocks = Blocks.coordinates(Regression())
    algorithm = FedAdamW(**options, alignment=0.0, schedule="constant", blocks=blocks)
    state = algorithm.start(Regression())
    central = Regression()
    rule = rules.AdamWBC(central.parameters(), **options)
    for number in range(6):
        client = make_client(0, **private, seed=number)
        now = Round(number, 6, 1)
        update = algorithm.train(client, algorithm.broadcast(state), now)
        state = algorithm.aggregate(state, [update], expected=1, clients=1, round=now)
        run = adamas.make_private(central, rule, client.dataset, loss, steps=1, seed=number, **private)
        for _ in run:
            pass
        torch.testing.assert_close(state["parameters"]["weight"], central.weight.data, rtol=1e-10, atol=0)
    assert float((central.weight - Regression().weight).detach().abs().max()) > 0.05


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_is_charged_for_every_query(name):
    algorithm = ALGORITHMS[name](**REFERENCES[name][1])
    client = make_client(0, batch_size=3, noise_multiplier=1.2, clip_norm=1.0, seed=0)
    trained(algorithm, rounds=2, clients=[client])
    queries = 0
    for event, count in client.ledger.entries:
        assert event.sampling_probability == 3 / 6
        inner = getattr(event.event, "events", [event.event])
        assert {gaussian.noise_multiplier for gaussian in inner} == {1.2}
        queries += count * len(inner)
    first_steps = 2 if name == "dp-fafed" else 0  # FAFED makes one query in the first step of a round
    assert queries == 2 * STEPS * algorithm.queries - first_steps


def test_a_client_that_fails_midway_is_charged_for_its_releases():
    client = make_client(0, batch_size=3, noise_multiplier=1.0, clip_norm=1.0, seed=0)

    class Breaking(rules.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            if self.steps == 2:
                raise RuntimeError("power cut")
            super().step()

    with pytest.raises(RuntimeError, match="power cut"):
        client.train(Breaking(client.model.parameters()), 3)
    assert sum(count for _, count in client.ledger.entries) == 2


def test_the_servers_control_variate_is_the_mean_of_the_clients():
    state, clients = trained(ALGORITHMS["dp-scaffold"](lr=0.05))
    mean = sum(client.memory["control"]["weight"] for client in clients) / CLIENTS
    torch.testing.assert_close(state["control"]["weight"], mean, rtol=1e-9, atol=1e-12)
    assert float(mean.abs().max()) > 0.01


def test_fedopt_with_zero_initial_moments_equals_torch_adam():
    """FedAdam is Adam on the negated increment. `lr` and `eps` undo the bias correction of torch."""
    b1, b2, lr, tau = 0.9, 0.99, 0.1, 1e-3
    algorithm = ALGORITHMS["dp-fedopt"](server_lr=lr, server_betas=(b1, b2), tau=tau)
    state = algorithm.start(Regression()) | {"second-moments": {"weight": torch.zeros(FEATURES).double()}}
    p = nn.Parameter(state["parameters"]["weight"].clone())
    adam = torch.optim.Adam([p], betas=(b1, b2))
    generator = torch.Generator().manual_seed(0)
    for number in range(5):
        step = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
        state = algorithm.aggregate(
            state, [{"increment": {"weight": step}}], expected=1, clients=1, round=Round(number, 5, 1)
        )
        p.grad = -step
        group, rest = adam.param_groups[0], 1 - b2 ** (number + 1)
        group["lr"] = lr * (1 - b1 ** (number + 1)) / math.sqrt(rest)
        group["eps"] = tau / math.sqrt(rest)
        adam.step()
        torch.testing.assert_close(state["parameters"]["weight"], p.data, rtol=1e-9, atol=1e-12)


def test_the_divisor_is_the_expected_number_of_clients_if_some_do_not_answer():
    algorithm = ALGORITHMS["dp-fedavg"]()
    state = {"parameters": {"weight": torch.zeros(2)}}
    update = {"increment": {"weight": torch.tensor([4.0, 8.0])}}
    after = algorithm.aggregate(state, [update], expected=4, clients=10, round=Round(0, 1, 1))
    assert after["parameters"]["weight"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_smoothing_solves_the_linear_system_of_the_laplacian(n):
    g = torch.linspace(-1, 2, n, dtype=torch.float64)
    ring = torch.eye(n, dtype=torch.float64)
    laplacian = 2 * ring - ring.roll(1, 0) - ring.roll(-1, 0)
    x = smoothed(g, 0.8)
    torch.testing.assert_close(x + 0.8 * laplacian @ x, g, rtol=1e-12, atol=1e-12)


def test_the_step_counter_of_the_published_code_shrinks_the_first_steps_of_a_round():
    lengths = {}
    for counter in ("split", "code"):
        algorithm = FedAdamW(counter=counter, alignment=0.0, weight_decay=0.0, betas=(0.9, 0.999))
        client = make_client(0)
        state = algorithm.start(Regression())
        state["second-moments"] = {"blocks": torch.tensor([1.0])}
        update = algorithm.train(client, algorithm.broadcast(state), Round(500, 1000, 1))
        lengths[counter] = float(update["increment"]["weight"].abs().max())
    assert lengths["code"] == pytest.approx(lengths["split"] * 0.1, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dp-fedavg", {"lr": 0.0}, "lr=0.0"),
        ("dp-fedavg", {"schedule": "step"}, "schedule='step'"),
        ("dp-fedavg", {"weight_decay": -1.0}, "weight_decay=-1.0"),
        ("dp-fedavg-ls", {"smoothing": -1.0}, "smoothing=-1.0"),
        ("dp-fedsam", {"radius": 0.0}, "radius=0.0"),
        ("dp-fedopt", {"second_moment": "sgd"}, "second_moment='sgd'"),
        ("dp-fedopt", {"tau": 0.0}, "tau=0.0"),
        ("dp-fedlada", {"alignment": 1.0}, "alignment=1.0"),
        ("dp-fafed", {"momentum": 0.0}, "momentum=0.0"),
        ("dp-fedadamw", {"alignment": 1.0}, "alignment=1.0"),
        ("dp-fedadamw", {"floor": "low"}, "floor='low'"),
        ("dp-fedadamw", {"aggregation": "mean"}, "aggregation='mean'"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        ALGORITHMS[name](**options)


def test_parameters_of_another_model_are_refused():
    client = make_client(0)
    with pytest.raises(ValueError, match="missing or unknown: bias, weight"):
        client.load({"bias": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"\['weight'\] of shape \(5,\), got \(2,\)"):
        client.load({"weight": torch.zeros(2, dtype=torch.float64)})


# --- rounds that are lost -------------------------------------------------------------------------------


def test_bias_correction_does_not_count_lost_rounds():
    algorithm = FedAdamW(lr=0.1, schedule="constant")
    received = algorithm.broadcast(algorithm.start(Regression()))
    first, lost, counted = (
        algorithm.train(make_client(0), received, now)["increment"]["weight"]
        for now in (Round(0, 3, STEPS), Round(1, 3, STEPS, lost=1), Round(1, 3, STEPS))
    )
    assert torch.equal(lost, first)
    assert not torch.allclose(counted, first)


def test_a_control_variate_that_is_not_finite_is_not_kept():
    algorithm = ALGORITHMS["dp-scaffold"](lr=0.1)
    client = make_client(0)
    received = algorithm.broadcast(algorithm.start(Regression()))
    algorithm.train(client, received, Round(0, 2, STEPS))
    kept = client.memory["control"]["weight"].clone()
    broken = {"parameters": received["parameters"], "control": {"weight": torch.full_like(kept, math.inf)}}
    algorithm.train(client, broken, Round(1, 2, STEPS))
    assert torch.equal(client.memory["control"]["weight"], kept)


@pytest.mark.parametrize("name", ["dp-fedadamw", "dp-fafed", "dp-fedlada"])
def test_moments_are_averaged_over_the_clients_that_answered(name):
    algorithm = ALGORITHMS[name](lr=0.1)
    state, now = algorithm.start(Regression()), Round(0, 3, STEPS)
    update = algorithm.train(make_client(0), algorithm.broadcast(state), now)
    result = algorithm.aggregate(state, [update], expected=2, clients=2, round=now)
    for key, value in update["second-moments"].items():
        assert torch.equal(result["second-moments"][key], value)
