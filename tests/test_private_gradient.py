"""A private gradient is checked, and written to optimizers."""

import pytest
import torch

from adamas import PrivateGradient
from tests.support.releases import parameter, rows


def test_a_mean_and_variance_that_do_not_match_are_refused():
    p, q = parameter(2), parameter(3)
    with pytest.raises(ValueError, match="same parameters"):
        PrivateGradient({p: torch.zeros(2)}, {q: 0.0})
    with pytest.raises(ValueError, match="mean of shape"):
        PrivateGradient({p: torch.zeros(3)}, {p: 0.0})
    with pytest.raises(ValueError, match="noise_variance of shape"):
        PrivateGradient({p: torch.zeros(2)}, {p: torch.zeros(3)})


def test_a_torch_optimizer_gets_the_mean_as_its_gradient():
    p = parameter(2)
    optimizer = torch.optim.SGD([p], lr=1.0)
    PrivateGradient({p: rows([1.0, 2.0])[0]}, {p: 0.5}).write_to(optimizer)
    optimizer.step()
    assert p.tolist() == [-1.0, -2.0]


def test_adding_to_a_written_gradient_does_not_change_the_release():
    p = parameter(2)
    made = PrivateGradient({p: rows([1.0, 2.0])[0]}, {p: 0.5})
    made.write_to(torch.optim.SGD([p], lr=1.0))
    p.sum().backward()  # accumulates a raw gradient into p.grad
    assert made.mean[p].tolist() == [1.0, 2.0]


def test_a_torch_optimizer_does_not_step_on_an_old_gradient_of_a_frozen_parameter():
    p, frozen = parameter(2), parameter(2)
    (p.sum() + frozen.sum()).backward()  # both get raw gradients
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([p, frozen], lr=1.0)
    PrivateGradient({p: rows([1.0, 2.0])[0]}, {p: 0.5}).write_to(optimizer)
    optimizer.step()
    assert p.tolist() == [-1.0, -2.0]
    assert frozen.tolist() == [0.0, 0.0]
