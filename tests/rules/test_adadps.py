"""AdaDPS takes its scale from side information or from public gradients."""

import numpy as np
import torch
from torch import nn

from adamas import PrivateGradient, rules
from tests.support.geometric_steps import flat


def test_a_step_follows_the_whitened_release():
    p = nn.Parameter(torch.zeros(2).double())
    side = torch.tensor([0.1, 10.0], dtype=torch.float64)
    rule = rules.AdaDPS([p], lr=0.5, preconditioner={p: side})
    torch.testing.assert_close(torch.as_tensor(rule.geometry().scale[p]), side, rtol=0, atol=0)
    PrivateGradient({p: torch.tensor([1.0, 1.0]).double()}, {p: 0.1}).write_to(rule)
    rule.step()
    torch.testing.assert_close(
        p.detach(), torch.tensor([-5.0, -0.05], dtype=torch.float64), rtol=1e-14, atol=0
    )


def test_the_scale_averages_the_squares_of_public_gradients():
    p = nn.Parameter(torch.zeros(2).double())
    rule = rules.AdaDPS([p], decay=0.9, eps=0.01)
    np.testing.assert_array_equal(flat([p], rule.geometry().scale), 1.0)
    rule.observe({p: torch.tensor([1.0, 0.0]).double()})
    np.testing.assert_allclose(flat([p], rule.geometry().scale), np.sqrt([0.11, 0.01]), rtol=1e-14)
    rule.observe({p: torch.tensor([2.0, 1.0]).double()})
    np.testing.assert_allclose(flat([p], rule.geometry().scale), np.sqrt([0.50, 0.11]), rtol=1e-14)
