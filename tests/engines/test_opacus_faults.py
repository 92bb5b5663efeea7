"""Inputs that Opacus mishandles are handled correctly here."""

import copy
import math

import pytest
import torch

pytest.importorskip("opacus")

from opacus import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from adamas import Geometry, clipped_sum, rules
from adamas.engines import ENGINES
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from tests.support.opacus_pairs import conv_model, images, opacus_pair, opacus_warnings, run_of, seeded
from tests.support.small_runs import loss

pytestmark = opacus_warnings


@pytest.mark.parametrize("engine", ENGINES)
def test_a_nan_example_makes_weights_of_opacus_nan_and_has_no_influence_here(engine):
    model = conv_model()
    x, y = images(6)
    poisoned = x.clone()
    poisoned[2] = math.nan

    wrapped, optimizer = opacus_pair(model, expected_batch_size=6)
    loss(wrapped, (poisoned, y)).sum().backward()
    optimizer.step()
    assert all(p.isnan().any() for p in wrapped.parameters())

    others = torch.tensor([0, 1, 3, 4, 5])
    results = []
    for batch in ((poisoned, y), (x[others], y[others])):
        trained = copy.deepcopy(model)
        rule = rules.SGD(trained.parameters(), lr=1.0)
        privatize(
            [(ENGINES[engine](trained, loss, batch), 0)],
            rule.geometry(),
            noise_multiplier=1.0,
            expected_batch_size=6,
            noise=GaussianNoise(0),
            charge=lambda _: (),
        ).write_to(rule)
        rule.step()
        results.append(list(trained.parameters()))
    for with_it, without_it, start in zip(*results, model.parameters(), strict=True):
        assert with_it.isfinite().all()
        torch.testing.assert_close(with_it, without_it, rtol=1e-5, atol=1e-6)
        assert not torch.equal(with_it, start)


def test_a_run_on_data_with_a_nan_example_stays_finite():
    x, y = images(20)
    x[7] = math.nan
    model = conv_model()
    run = run_of(model, TensorDataset(x, y), loss, batch_size=20, steps=3, noise_multiplier=1.0)
    for _ in run:
        pass
    assert all(p.isfinite().all() for p in model.parameters())


def test_an_empty_batch_crashes_adaptive_clipping_of_opacus_and_is_a_noise_step_here():
    model = seeded(nn.Linear(3, 2))
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    optimizer = AdaClipDPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=1.0,
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.1,
        unclipped_num_std=1.0,
        max_grad_norm=1.0,
        expected_batch_size=4,
    )
    wrapped(torch.zeros(0, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="cannot reshape tensor of 0 elements"):
        optimizer.step()

    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    run = run_of(
        model,
        TensorDataset(x),
        lambda model, batch: model(batch[0]).sum(1),
        batch_size=1,
        steps=8,
        noise_multiplier=1.0,
    )
    empty = [step for step in range(8) if not len(run.loader.sampler.indices(step).indices)]
    assert empty
    for step in run:
        if step.number - 1 in empty:
            assert all(mean.isfinite().all() and mean.any() for mean in step.release.mean.values())
    assert [count for _, count in run.ledger.entries] == [8]  # empty batches count


def test_an_empty_batch_changes_a_global_setting_in_opacus_and_none_here():
    before = torch.backends.cudnn.deterministic
    try:
        torch.backends.cudnn.deterministic = False
        model = seeded(nn.Embedding(5, 3))
        empty = torch.zeros(0, 2, dtype=torch.long)
        wrapped, _ = opacus_pair(model)
        wrapped(empty).sum().backward()
        assert torch.backends.cudnn.deterministic

        torch.backends.cudnn.deterministic = False
        for make in ENGINES.values():
            engine = make(model, lambda model, x: model(x).sum((1, 2)), empty)
            (total,) = clipped_sum(engine, Geometry.ball(model.parameters())).values()
            assert total.shape == (5, 3)
            assert not total.any()
        assert not torch.backends.cudnn.deterministic
    finally:
        torch.backends.cudnn.deterministic = before


@pytest.mark.parametrize("engine", ENGINES)
def test_the_padding_row_of_an_embedding_has_a_gradient_in_opacus_and_none_here(engine):
    model = seeded(nn.Embedding(5, 3, padding_idx=0))
    tokens = torch.tensor([[0, 1, 4], [2, 0, 0], [3, 3, 1]])
    weights = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))

    def weighted(model, batch):
        tokens, weights = batch
        return (model(tokens) * weights).sum((1, 2))

    wrapped, _ = opacus_pair(model)
    weighted(wrapped, (tokens, weights)).sum().backward()
    (q,) = wrapped.parameters()
    assert not q.grad[0].any()  # torch skips the padding row
    assert (q.grad_sample[:2, 0].abs() > 0.05).all()

    (p,) = model.parameters()
    ours = ENGINES[engine](model, weighted, (tokens, weights))
    for i in range(3):
        one = ours.weighted_sum(F.one_hot(torch.tensor(i), 3).double())[p]
        assert not one[0].any()
        torch.testing.assert_close(one[1:], q.grad_sample[i, 1:])
    # Our norms are those of the gradients that reach the parameters.
    norms = q.grad_sample[:, 1:].double().flatten(1).norm(dim=1)
    torch.testing.assert_close(ours.norms(Geometry.ball([p])), norms, rtol=1e-5, atol=0)


def test_leaving_a_logical_batch_counts_an_example_twice_in_opacus_and_once_here():
    # The gradient of example i is x_i and the clip norm is 1, so that it moves weight i by 1 in a step.
    data = TensorDataset(torch.eye(4))

    def linear(model, batch):
        return -model(batch[0])[:, 0]

    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)

    wrapped, optimizer = opacus_pair(model)
    loader = DataLoader(data, batch_size=4)
    for leave in (True, False):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=1, optimizer=optimizer
        ) as micro_batches:
            for batch in micro_batches:
                optimizer.zero_grad()
                linear(wrapped, batch).sum().backward()
                optimizer.step()
                if leave:
                    break
    (q,) = wrapped.parameters()
    torch.testing.assert_close(q.detach(), torch.tensor([[2.0, 1.0, 1.0, 1.0]]), rtol=1e-5, atol=0)

    run = run_of(
        model,
        data,
        linear,
        lr=4.0,
        batch_size=4,
        steps=1,
        noise_multiplier=0.0,
        micro_batch_size=1,
        sampling="shuffled",
    )
    for batch in run.batches():
        for data, _ in batch:
            linear(model, data).sum().backward()  # as a user might do before leaving the loop
            break
        break
    for _ in run:
        pass
    assert model.weight.tolist() == [[1.0, 1.0, 1.0, 1.0]]


def test_a_failure_within_a_logical_batch_keeps_a_partial_sum_in_opacus_and_none_here():
    x = torch.eye(4)
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    calls_left = [1]  # calls before the second micro-batch fails

    def failing(model, batch):
        calls_left[0] -= 1
        if calls_left[0] == -1:
            raise OSError("disk")
        return -model(batch[0])[:, 0]

    wrapped, optimizer = opacus_pair(model)
    loader = DataLoader(TensorDataset(x), batch_size=4)
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=2, optimizer=optimizer
        ) as micro_batches:
            try:
                for batch in micro_batches:
                    optimizer.zero_grad()
                    failing(wrapped, batch).sum().backward()
                    optimizer.step()
            except OSError:
                continue
    (q,) = wrapped.parameters()
    assert q.detach().max() > 1.5  # the influence of one example, although the clip norm is 1

    run = run_of(
        model,
        TensorDataset(x),
        failing,
        lr=4.0,
        batch_size=4,
        steps=1,
        noise_multiplier=0.0,
        micro_batch_size=2,
        sampling="shuffled",
        engine="vmap",
    )
    calls_left[0] = 1  # the first micro-batch succeeds again
    with pytest.raises(OSError, match="disk"):
        next(iter(run))
    assert run.steps_done == 0
    assert run.ledger.entries == []
    for _ in run:
        pass
    assert model.weight.tolist() == [[1.0, 1.0, 1.0, 1.0]]
