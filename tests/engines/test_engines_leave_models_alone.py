"""No engine leaves a trace on the model that it differentiates."""

import torch
from torch import nn

from adamas.engines import ENGINES
from tests.support.every_engine import assert_close, assert_sums, data, every_engine, mlp
from tests.support.one_by_one import ball, loss, one_by_one, whitened_norms
from tests.support.traces import traces


@every_engine
def test_the_model_is_left_untouched(engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    model = model.double()
    model[0].weight.requires_grad_(False)
    model[2].eval()  # with fixed statistics it mixes no examples; the other layers are in training mode
    before = traces(model)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    built = ENGINES[engine](model, loss, data(3))
    built.norms(ball(model))
    built.weighted_sum(torch.ones(3).double())
    assert traces(model) == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    # Ordinary training still works.
    loss(model, data(3)).sum().backward()
    assert model[4].weight.grad is not None


@every_engine
def test_an_existing_gradient_is_neither_read_nor_changed(engine):
    model, batch = mlp(), data(3)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    built = ENGINES[engine](model, loss, batch)
    norms = built.norms(ball(model))
    gradients = one_by_one(model, batch)
    assert_close(norms, whitened_norms(gradients, ball(model)))
    assert_sums(built, torch.ones(3), gradients)
    assert all(bool((p.grad == 7).all()) for p in model.parameters())
