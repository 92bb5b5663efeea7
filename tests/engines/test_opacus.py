"""Compares private gradients with those of Opacus: equal where it is right, and correct where it is not."""

import copy
import math

import pytest
import torch

pytest.importorskip("opacus")

from opacus import GradSampleModule
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import adamas
from adamas import Geometry, calibrate, clipped_sum, rules
from adamas.engines import ENGINES
from adamas.noise import GaussianNoise
from adamas.privatize import privatize

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:Optimal order is the:UserWarning"),
]


def seeded(module, seed=0):
    """Sets the weights of a module to values that depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    return module


def conv_model():
    return seeded(
        nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(64, 8),
            nn.Tanh(),
            nn.Linear(8, 3, bias=False),
        )
    )


def images(n=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 8, 8, generator=generator) * torch.linspace(0.1, 3, n).view(-1, 1, 1, 1)
    return x, torch.randint(0, 3, (n,), generator=generator)


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def opacus_pair(model, *, lr=1.0, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=1):
    """Makes Opacus's wrapped copy of a model, with SGD on it."""
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=lr),
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        expected_batch_size=expected_batch_size,
        loss_reduction="mean",  # divides the sum by expected_batch_size
        generator=torch.Generator().manual_seed(0),
    )
    return wrapped, optimizer


def run_of(model, dataset, loss, *, lr=1.0, **settings):
    return adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=lr),
        dataset,
        loss,
        delta=1e-5,
        seed=0,
        progress=False,
        **settings,
    )


# Where both are right -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_and_clipped_sums_agree_with_opacus_gradients_clipped_by_hand(engine):
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
def test_clipped_sums_agree_with_those_of_opacus_optimizer(engine):
    model, batch = conv_model(), images()
    wrapped, optimizer = opacus_pair(model, max_grad_norm=0.5)
    loss(wrapped, batch).sum().backward()
    optimizer.clip_and_accumulate()
    sums = clipped_sum(ENGINES[engine](model, loss, batch), Geometry.ball(model.parameters(), 0.5))
    for p, q in zip(model.parameters(), wrapped.parameters(), strict=True):
        # Opacus adds 1e-6 to the norm that it divides by.
        torch.testing.assert_close(0.5 * sums[p], q.summed_grad, rtol=1e-4, atol=1e-5)


def test_a_run_without_noise_follows_opacus_weights():
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


def test_epsilons_agree_with_opacus_accountants():
    setting = {"noise_multiplier": 1.1, "sampling_rate": 0.01, "steps": 1000, "delta": 1e-5}
    rdp, prv = RDPAccountant(), PRVAccountant()
    for accountant in (rdp, prv):
        accountant.history = [(1.1, 0.01, 1000)]
    assert calibrate.epsilon(**setting, accountant="rdp") == pytest.approx(
        rdp.get_epsilon(delta=1e-5), rel=1e-3
    )
    # PRV answers with an upper bound, its error (0.01) included.
    ours, theirs = calibrate.epsilon(**setting), prv.get_epsilon(delta=1e-5)
    assert ours < theirs < ours + 0.02


# Where Opacus is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_nan_example_destroys_opacus_weights_and_has_no_influence_here(engine):
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


def test_an_empty_batch_crashes_opacus_adaptive_optimizer_and_is_a_noise_step_here():
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
    assert [count for _, count in run.ledger.entries] == [8]  # the empty ones count


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
    assert not q.grad[0].any()  # torch handles the padding row
    assert (q.grad_sample[:2, 0].abs() > 0.05).all()

    (p,) = model.parameters()
    ours = ENGINES[engine](model, weighted, (tokens, weights))
    for i in range(3):
        one = ours.weighted_sum(F.one_hot(torch.tensor(i), 3).double())[p]
        assert not one[0].any()
        torch.testing.assert_close(one[1:], q.grad_sample[i, 1:])
    # Our norms are those of the gradients that the parameters get.
    norms = q.grad_sample[:, 1:].double().flatten(1).norm(dim=1)
    torch.testing.assert_close(ours.norms(Geometry.ball([p])), norms, rtol=1e-5, atol=0)


def test_leaving_a_logical_batch_doubles_an_example_in_opacus_and_not_here():
    # The gradient of example i is x_i, the clip norm 1: each moves its own weight by 1 in a step.
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
            linear(model, data).sum().backward()  # what a user may do before leaving
            break
        break
    for _ in run:
        pass
    assert model.weight.tolist() == [[1.0, 1.0, 1.0, 1.0]]


def test_a_failure_within_a_logical_batch_leaves_a_sum_in_opacus_and_nothing_here():
    x = torch.eye(4)
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    calls_left = [1]  # before the second micro-batch fails

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
    assert q.detach().max() > 1.5  # an example's influence, with a clip norm of 1

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
    calls_left[0] = 1  # for the first micro-batch
    with pytest.raises(OSError, match="disk"):
        next(iter(run))
    assert run.steps_done == 0
    assert run.ledger.entries == []
    for _ in run:
        pass
    assert model.weight.tolist() == [[1.0, 1.0, 1.0, 1.0]]
