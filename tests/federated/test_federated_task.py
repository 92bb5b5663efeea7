"""A task of the package has the data and the initial model of a central training with the same names."""

import pytest
import torch

from adamas.experiment import Settings
from adamas.experiment.training import task as central_task
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import DataTask

TRAINING = {
    "clients": 3,
    "rounds": 2,
    "local_steps": 2,
    "batch_size": 20,
    "noise_multiplier": 1.0,
    "delta": 1e-5,
}


@pytest.mark.parametrize("data", ["digits", "digits/validation"])
@pytest.mark.parametrize("seed", [None, 3])
def test_names_mean_what_they_mean_in_a_central_training(data, seed):
    made = DataTask(FederatedSettings(data=data, model="mlp", seed=seed, **TRAINING))
    named = {"data": data, "model": "mlp", "rule": "sgd", "batch_size": 20, "delta": 1e-5}
    _, model, expected = central_task(Settings(**named, seed=seed or 0))
    for name, value in made.make_model().state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    for mine, theirs in zip(made.test_data().tensors, expected.test.tensors, strict=True):
        assert torch.equal(mine, theirs)
    sizes = [len(made.client_data(client, 3)) for client in range(3)]
    assert sum(sizes) == len(expected.train)
    assert sum(map(sum, made.label_counts())) == len(expected.train)


def test_a_model_is_made_without_drawing_from_the_global_generator():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    DataTask(FederatedSettings(data="digits", model="mlp", **TRAINING)).make_model()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["data_options", "model_options"])
def test_unknown_options_are_named(name):
    with pytest.raises(ValueError, match=rf"Expected {name} among \[.*\], got 'depths'"):
        FederatedSettings(data="digits", model="mlp", **TRAINING, **{name: {"depths": 9}})


@pytest.mark.parametrize("option", ["input_shape", "classes"])
def test_what_follows_from_the_data_is_no_option_of_a_model(option):
    with pytest.raises(ValueError, match=f"got '{option}'"):
        FederatedSettings(data="digits", model="mlp", **TRAINING, model_options={option: 3})
