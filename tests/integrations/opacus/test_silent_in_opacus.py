"""What Opacus leaves out or scales without a word, as docs/from_opacus.md says, is refused here."""

import pytest
import torch

pytest.importorskip("opacus")

import opacus
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.support.opacus_loops import blobs, mlp
from tests.support.opacus_pairs import opacus_warnings

pytestmark = [*opacus_warnings, pytest.mark.slow]


def moved(*, penalty=0.0, clip=None, reduction="mean"):
    """Makes one step of Opacus without noise, and returns how far the weights moved."""
    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    data = TensorDataset(*blobs(20))
    module, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(data, batch_size=20),
        noise_multiplier=0.0,
        max_grad_norm=100.0,
        poisson_sampling=False,
    )
    for x, y in loader:
        loss = F.cross_entropy(module(x), y, reduction=reduction)
        (loss + penalty * sum(p.square().sum() for p in module.parameters())).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return torch.cat([(p - q).detach().flatten() for p, q in zip(model.parameters(), before, strict=True)])


def test_a_penalty_of_the_weights_and_clip_grad_norm_have_no_effect_in_opacus():
    plain = moved()
    assert plain.norm() > 0.01
    assert torch.equal(moved(penalty=10.0), plain)
    assert torch.equal(moved(clip=1e-6), plain)


def test_a_summed_loss_is_scaled_by_the_batch_size_in_opacus():
    torch.testing.assert_close(moved(reduction="sum"), 20 * moved(), rtol=1e-3, atol=1e-4)
