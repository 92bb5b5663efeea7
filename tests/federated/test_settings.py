"""Settings of a federated training: bad ones are refused, and they give the plan and its noise."""

import re

import pytest

from adamas.federated.settings import FederatedSettings
from tests.support.federated_runs import blobs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedavg"}, "algorithm"),
        ({"algorithm_options": {"momentum": 1}}, "algorithm_options of dp-fedadamw among .* got 'momentum'"),
        ({"algorithm_options": {"blocks": None}}, "got 'blocks'"),
        ({"algorithm_options": {"lr": -1.0}}, "lr"),
        ({"unit": "user"}, "unit"),
        ({"accountant": "prv"}, "accountant"),
        ({"clients": 0}, "clients"),
        ({"rounds": 0}, "rounds"),
        ({"local_steps": 0}, "local_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"participation": 1.5}, "participation"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"dirichlet": 0.0}, "dirichlet"),
        ({"count_on_participation": True}, "seed=None with count_on_participation"),
        ({"count_on_participation": True, "unit": "client", "seed": None}, "count_on_participation=False"),
        ({"engine": "opacus"}, "engine"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"least_examples": 9}, "least_examples=9 >= batch_size=10"),
        ({"task": "", "data": "imagenet", "model": "mlp"}, "data"),
        ({"task": "", "data": "digits", "model": "vgg"}, "model"),
        ({"task": "", "data": "digits", "model": "mlp", "model_options": {"depth": 9}}, "model_options"),
        ({"delta": 1.0}, "delta"),
        ({"epsilon": 1.0}, "exactly one of epsilon and noise_multiplier"),
        ({"noise_multiplier": None}, "exactly one of epsilon and noise_multiplier"),
        ({"noise_multiplier": None, "epsilon": -1.0}, "epsilon"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"data": "digits", "model": "mlp"}, "either task, a Python module, or both data and model"),
        ({"task": "", "data": "digits"}, "either task, a Python module, or both data and model"),
        ({"task": ""}, "either task, a Python module, or both data and model"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        blobs(**options)


@pytest.mark.parametrize("name", ["data_options", "model_options"])
def test_unknown_options_are_named(name):
    with pytest.raises(ValueError, match=rf"Expected {name} among \[.*\], got 'depths'"):
        blobs(task="", data="digits", model="mlp", **{name: {"depths": 9}})


@pytest.mark.parametrize("option", ["input_shape", "classes"])
def test_a_model_takes_no_option_that_the_data_determine(option):
    with pytest.raises(ValueError, match=f"got '{option}'"):
        blobs(task="", data="digits", model="mlp", model_options={option: 3})


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"local_stepz": 1}, "local_stepz"),
        ({"algorithm-options": 1}, "algorithm-options"),
        ({"lr.x": 1}, "lr.x"),
    ],
)
def test_unknown_names_in_a_flat_configuration_are_refused(config, wrong):
    with pytest.raises(ValueError, match=re.escape(repr(wrong))):
        FederatedSettings.from_flat(config)


def test_settings_survive_a_round_trip_through_json():
    settings = blobs(algorithm_options={"betas": [0.8, 0.99]})
    assert FederatedSettings.from_json(settings.to_json()) == settings
    assert settings.make_algorithm().betas == (0.8, 0.99)


def test_the_plan_covers_the_client_with_the_fewest_records():
    plan = blobs(algorithm="dp-fedsam").plan([50, 40, 60, 70])
    assert plan.sampling_rate == 10 / 40
    assert plan.queries == 2
    assert plan.participation is None
    assert blobs(count_on_participation=True, seed=None).plan([50] * 4).participation == 0.5
    by_client = blobs(unit="client", algorithm="dp-fedsam").plan([50] * 4)
    assert (by_client.sampling_rate, by_client.queries) == (0.5, 1)


@pytest.mark.slow
def test_epsilon_is_converted_to_the_least_noise_that_keeps_it():
    settings = blobs(noise_multiplier=None, epsilon=3.0)
    plan = settings.plan([40] * 4)
    noise = settings.noise(plan)
    assert plan.epsilon(noise) <= 3.0 < plan.epsilon(noise * 0.99)
