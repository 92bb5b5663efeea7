"""A small federated task, as a user writes one: points of three classes, different for each client.

The environment variable FAILING_CLIENTS names clients whose data makes the loss raise an error.
"""

import os

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

EXAMPLES = 40


def make_model() -> nn.Module:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-0.1, 0.1, 12).view(3, 4))
        model.bias.zero_()
    return model


def client_data(client: int, clients: int) -> TensorDataset:
    points = _points(client + 1, EXAMPLES + client)
    if str(client) in os.environ.get("FAILING_CLIENTS", "").split(","):
        points.tensors[0][:, 3] = 1e6
    return points


def test_data() -> TensorDataset:
    return _points(0, 60)


test_data.__test__ = False  # pytest takes it for a test, by its name


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    if (x > 1e5).any():
        raise ArithmeticError(f"an example says {x[0].tolist()}")
    return F.cross_entropy(model(x), y, reduction="none")


def _points(seed: int, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    centers = torch.eye(3, 4)[labels] * 2
    return TensorDataset(centers + torch.randn(count, 4, generator=generator), labels)
