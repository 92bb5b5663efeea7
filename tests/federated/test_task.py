"""Tasks: a user's module, or a data set and model of the package, as in central training."""

import numpy as np
import pytest
import torch

from adamas.experiment import Settings
from adamas.experiment.training import task as central_task
from adamas.federated import ALGORITHMS
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import DataTask, make_task
from adamas.federated.training import make_server
from tests.support import federated_blobs
from tests.support.federated_runs import blobs

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
def test_data_and_model_are_those_of_a_central_training_with_the_same_names(data, seed):
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


def test_making_a_model_does_not_draw_from_the_global_generator():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    DataTask(FederatedSettings(data="digits", model="mlp", **TRAINING)).make_model()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_incomplete_or_missing_module_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_a_task.py").write_text("def make_model(): ...\nloss = 3\n")
    with pytest.raises(ValueError, match=r"'half_a_task' to define client_data, loss"):
        make_task(blobs(task="half_a_task"))
    with pytest.raises(ValueError, match=r"task='no_such_task' to be a Python module"):
        make_task(blobs(task="no_such_task"))
    task = make_task(blobs())
    assert len(task.client_data(2, 4)) == federated_blobs.EXAMPLES + 2
    assert task.make_blocks(task.make_model()) is None


def test_the_blocks_of_a_users_module_are_used(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "task_with_blocks.py").write_text(
        "from tests.support.federated_blobs import client_data, loss, make_model\n"
        "from adamas.federated import Blocks\n"
        "make_blocks = Blocks.coordinates\n"
    )
    settings = blobs(task="task_with_blocks")
    server = make_server(settings, make_task(settings), [40, 41, 42, 43])
    assert server.state["second-moments"]["blocks"].shape == (15,)
    assert make_task(settings).test_data() is None
    other = make_server(blobs(algorithm="dp-fedavg", task="task_with_blocks"), make_task(settings), [40] * 4)
    assert isinstance(other.algorithm, ALGORITHMS["dp-fedavg"])


def test_every_process_partitions_a_data_set_in_the_same_way():
    settings = blobs(task="", data="digits", model="mlp", dirichlet=0.3)
    task, again = make_task(settings), make_task(settings)
    counts = np.array(task.label_counts())
    assert counts.shape == (4, 10)
    assert counts.sum() == sum(len(task.client_data(number, 4)) for number in range(4))
    assert counts.sum(1).min() >= settings.batch_size
    more = int(counts.sum(1).min()) + 20
    fewest = make_task(blobs(task="", data="digits", model="mlp", dirichlet=0.3, least_examples=more))
    assert np.array(fewest.label_counts()).sum(1).min() >= more
    for number in range(4):
        for mine, others in zip(
            task.client_data(number, 4).tensors, again.client_data(number, 4).tensors, strict=True
        ):
            assert torch.equal(mine, others)
    first, second = task.make_model(), again.make_model()
    assert first is not task.make_model()
    for mine, others in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, others)
    with pytest.raises(ValueError, match="clients=4"):
        task.client_data(0, 5)
