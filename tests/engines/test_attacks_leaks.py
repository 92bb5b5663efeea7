"""Attacks that try to see a gradient without noise, by hooks of parameters or in `.grad`."""

import pytest
from torch import Tensor, nn

from adamas import UnsupportedError
from tests.support.attacks import EVERY, Attack, N, ce, outlier, released, zero

SEEN: list[Tensor] = []


class Watched(nn.Module):
    """A linear layer whose hooks keep its gradients."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = zero()
        SEEN.clear()
        for p in self.parameters():
            if kind == "hook":
                p.register_hook(lambda g: SEEN.append(g.clone()))
            else:
                p.register_post_accumulate_grad_hook(lambda p: SEEN.append(p.grad.clone()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("kind", ["hook", "post-hook"])
@pytest.mark.parametrize("engine", EVERY)
def test_hooks_of_parameters_see_no_gradient_without_noise(kind, engine):
    case = Attack(lambda: Watched(kind), ce(), outlier())
    try:
        released(case, engine, range(N))
    except UnsupportedError:
        return
    assert not SEEN


@pytest.mark.parametrize("engine", EVERY)
def test_no_gradient_is_left_on_the_model(engine):
    models = []
    case = Attack(lambda: models.append(zero()) or models[-1], ce(), outlier())
    released(case, engine, range(N))
    assert all(p.grad is None for p in models[-1].parameters())
