"""Complex parameters are refused: no norm would include their imaginary parts, which would get no noise."""

import pytest
import torch
from torch import nn

from adamas import Geometry, UnsupportedError, clipped_sum
from adamas.engines import ENGINES
from tests.support.every_engine import every_engine
from tests.support.sgd_runs import make_run
from tests.support.small_runs import finish


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return (self.layer(x) * self.phase).abs()


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_complex_parameter_is_refused_by_name(engine):
    with pytest.raises(UnsupportedError, match=r"'phase' .* is complex .* torch.view_as_complex"):
        make_run(Complex(), engine=engine)


def test_a_complex_parameter_is_refused_by_the_geometry():
    p = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="view_as_complex"):
        clipped_sum({p: torch.zeros(4, 3, dtype=torch.complex64)}, Geometry.ball([p]))


@every_engine
def test_a_complex_parameter_trains_if_it_is_frozen_or_held_as_real_numbers(engine):
    class Real(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)
            self.phase = nn.Parameter(torch.ones(2, 2))

        def forward(self, x):
            return torch.view_as_real(self.layer(x) * torch.view_as_complex(self.phase)).sum(-1)

    model = Complex()
    model.phase.requires_grad_(False)
    finish(make_run(model, engine=engine))
    finish(make_run(Real(), engine="loop"))
