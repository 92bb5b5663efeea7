"""Gradients, weights and epsilons agree with those of Opacus."""

import pytest
import torch

pytest.importorskip("opacus")

from opacus.accountants import PRVAccountant, RDPAccountant
from torch.utils.data import TensorDataset

from adamas import Geometry, calibrate, clipped_sum
from adamas.engines import ENGINES
from tests.support.opacus_pairs import conv_model, images, opacus_pair, opacus_warnings, run_of
from tests.support.small_runs import loss

pytestmark = opacus_warnings


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_and_clipped_sums_are_those_of_opacus_gradients_clipped_by_hand(engine):
    model, batch, radius = conv_model(), images(), 3.0
    wrapped, _ = opacus_pair(model)
    loss(wrapped, batch).sum().backward()
    theirs = [p.grad_sample.double() for p in wrapped.parameters()]
    norms = torch.stack([g.flatten(1).square().sum(1) for g in theirs]).sum(0).sqrt()
    factors = 1 / (norms / radius).clamp(min=1)
    assert 2 < (factors < 1).sum() < 10  # some are clipped and some are not

    ours = ENGINES[engine](model, loss, batch)
    geometry = Geometry.ball(model.parameters(), radius)
    torch.testing.assert_close(ours.norms(geometry), norms / radius, rtol=1e-5, atol=0)
    sums = clipped_sum(ours, geometry)
    for p, g in zip(model.parameters(), theirs, strict=True):
        expected = torch.einsum("n,n...->...", factors, g)
        torch.testing.assert_close(radius * sums[p].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_clipped_sums_are_those_of_the_opacus_optimizer(engine):
    model, batch = conv_model(), images()
    wrapped, optimizer = opacus_pair(model, max_grad_norm=0.5)
    loss(wrapped, batch).sum().backward()
    optimizer.clip_and_accumulate()
    sums = clipped_sum(ENGINES[engine](model, loss, batch), Geometry.ball(model.parameters(), 0.5))
    for p, q in zip(model.parameters(), wrapped.parameters(), strict=True):
        # Opacus adds 1e-6 to the norm that it divides by.
        torch.testing.assert_close(0.5 * sums[p], q.summed_grad, rtol=1e-4, atol=1e-5)


def test_a_run_without_noise_has_the_weights_of_opacus():
    model, data = conv_model(), TensorDataset(*images(30))
    wrapped, optimizer = opacus_pair(model, lr=0.5, expected_batch_size=10)
    run = run_of(
        model,
        data,
        loss,
        lr=0.5,
        batch_size=10,
        steps=4,
        noise_multiplier=0.0,
        micro_batch_size=4,
        allow_large_delta=True,
    )
    before = [p.detach().clone() for p in model.parameters()]
    for step in range(4):
        batch = data[torch.from_numpy(run.loader.sampler.indices(step).indices)]
        optimizer.zero_grad()
        loss(wrapped, batch).sum().backward()
        optimizer.step()
    for _ in run:
        pass
    for p, q, start in zip(model.parameters(), wrapped.parameters(), before, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        assert (p - start).norm() > 0.01


def test_epsilons_are_those_of_opacus_accountants():
    setting = {"noise_multiplier": 1.1, "sampling_rate": 0.01, "steps": 1000, "delta": 1e-5}
    rdp, prv = RDPAccountant(), PRVAccountant()
    for accountant in (rdp, prv):
        accountant.history = [(1.1, 0.01, 1000)]
    assert calibrate.epsilon(**setting, accountant="rdp") == pytest.approx(
        rdp.get_epsilon(delta=1e-5), rel=1e-3
    )
    # PRV returns an upper bound, which includes its error of 0.01.
    ours, theirs = calibrate.epsilon(**setting), prv.get_epsilon(delta=1e-5)
    assert ours < theirs < ours + 0.02
