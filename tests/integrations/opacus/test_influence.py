"""Attacks through the loop: one record moves a step by at most 1, whatever the loop leaves out or repeats."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from adamas import UnsupportedError, rules
from adamas.integrations.opacus import BatchMemoryManager, PrivacyEngine
from tests.support.opacus_loops import blobs, mlp, private, train

N = 8


def unit_vectors():
    """The gradient of example i is 5 in weight i and clipped to 1, so that weight i counts its releases."""
    model = nn.Linear(N, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model, TensorDataset(torch.eye(N))


def counting(batch_size=4, **options):
    """Makes a loop without noise in which a step adds 1 to the weight of each example of the batch."""
    model, data = unit_vectors()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(batch_size))
    options = {"noise_multiplier": 0.0} | options
    return model, *private(model, data, batch_size=batch_size, optimizer=optimizer, **options)


def backward(module, batch):
    (-5 * module(batch[0])).mean().backward()


def drawn(engine, steps):
    """How often each example is drawn in some steps, by the run's own sampler."""
    counts = torch.zeros(N)
    for step in steps:
        counts[engine.run.loader.sampler.indices(step).indices] += 1
    return counts


def assert_counts(model, counts):
    torch.testing.assert_close(model.weight[0].detach(), counts, rtol=1e-6, atol=1e-6)


def released(engine):
    return sum(count for _, _, count in engine.accountant.history)


def test_leaving_the_loop_in_the_middle_of_an_epoch_leaves_nothing_behind():
    model, engine, module, optimizer, loader = counting(batch_size=2)
    for _ in range(3):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=1, optimizer=optimizer
        ) as physical:
            for place, batch in enumerate(physical):
                optimizer.zero_grad()
                backward(module, batch)
                optimizer.step()
                if place == 1:
                    break
    counts = drawn(engine, range(6))
    assert counts.max() >= 2
    assert_counts(model, counts)
    assert released(engine) == 6


def test_leaving_the_loop_between_backward_and_step_drops_the_release():
    model, engine, module, optimizer, loader = counting()
    for batch in loader:
        backward(module, batch)
        break
    (stale,) = next(iter(loader))
    next(iter(loader))
    with pytest.raises(RuntimeError, match="current batch"):
        backward(module, [stale])
    for batch in loader:
        optimizer.zero_grad()
        backward(module, batch)
        optimizer.step()
        break
    assert_counts(model, drawn(engine, [1]))
    assert released(engine) == 2  # the first one was charged, too


def test_a_turn_without_backward_is_not_charged_and_releases_nothing():
    model, engine, module, optimizer, loader = counting(batch_size=2)
    for place, batch in enumerate(loader):
        if place % 2:
            backward(module, batch)
            optimizer.step()
    assert released(engine) == 2
    assert_counts(model, drawn(engine, range(2)))


def test_a_second_backward_on_one_batch_is_refused_and_not_charged():
    model, engine, module, optimizer, loader = counting()
    batch = next(iter(loader))
    backward(module, batch)
    with pytest.raises(RuntimeError, match=r"one backward\(\) for each batch"):
        backward(module, batch)
    assert released(engine) == 1
    optimizer.step()
    assert_counts(model, drawn(engine, [0]))


@pytest.mark.parametrize("how", ["wrapped", "original", "scheduled", "closure"])
def test_a_step_without_a_release_is_refused(how):
    model, _, _, optimizer, _ = counting()
    F.mse_loss(model(torch.eye(N)), torch.ones(N, 1)).backward()  # a gradient without noise
    step = optimizer.original_optimizer.step if how == "original" else optimizer.step
    if how == "scheduled":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        step = optimizer.step
    with pytest.raises(RuntimeError, match="needs a fresh release"):
        step(*([lambda: None] if how == "closure" else []))
    assert not model.weight.any()


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, rules.SGD])
def test_a_closure_of_the_users_own_optimizer_is_refused_before_it_is_called(kind, by_name):
    model, data = unit_vectors()
    own = kind(model.parameters(), lr=4.0)
    engine, module, _, loader = private(model, data, batch_size=4, optimizer=own, noise_multiplier=0.0)
    called = []

    def closure():
        called.append(True)
        own.zero_grad()
        loss = 1000 * model(torch.eye(N)).sum()
        loss.backward()
        return loss

    backward(module, next(iter(loader)))
    with pytest.raises(RuntimeError, match=r"without closure=.*that make_private returned"):
        own.step(**{"closure": closure}) if by_name else own.step(closure)
    assert not called
    assert not model.weight.any()
    own.step(None)  # the release is still there
    assert_counts(model, drawn(engine, [0]))


def test_a_second_step_on_one_release_is_refused():
    model, engine, module, optimizer, loader = counting()
    backward(module, next(iter(loader)))
    optimizer.step()
    with pytest.raises(RuntimeError, match="needs a fresh release"):
        optimizer.step()
    assert_counts(model, drawn(engine, [0]))


CHANGES = {
    "plain backward": lambda model: model(torch.eye(N)).sum().backward(),
    "in place": lambda model: model.weight.grad.add_(1.0),
    "replaced": lambda model: setattr(model.weight, "grad", torch.ones(1, N)),
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "zero_grad": lambda model: model.zero_grad(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_gradient_that_is_not_the_release_is_refused(change):
    model, _, module, optimizer, loader = counting()
    backward(module, next(iter(loader)))
    CHANGES[change](model)
    with pytest.raises(RuntimeError, match=r"not the release's any more|is None"):
        optimizer.step()
    assert not model.weight.any()


def test_a_change_past_autograd_does_not_reach_the_step():
    model, engine, module, optimizer, loader = counting()
    backward(module, next(iter(loader)))
    model.weight.grad.data.add_(100.0)
    optimizer.step()
    assert_counts(model, drawn(engine, [0]))


def test_a_frozen_parameter_with_a_plain_gradient_is_refused():
    model = mlp()
    _, module, optimizer, loader = private(model, noise_multiplier=0.0)
    model[0].weight.requires_grad_(False)
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    before = model[0].weight.clone()
    model[0].weight.grad = torch.ones_like(before)
    with pytest.raises(RuntimeError, match="not the release's"):
        optimizer.step()
    assert torch.equal(model[0].weight, before)


def test_gradients_of_plain_tensors_before_backward_are_replaced():
    model, engine, module, optimizer, loader = counting()
    module(torch.eye(N)).sum().backward()
    backward(module, next(iter(loader)))
    optimizer.step()
    assert_counts(model, drawn(engine, [0]))


def test_the_model_itself_is_refused_on_a_batch_before_anything_is_charged():
    model, engine, _, _, loader = counting()
    (x,) = next(iter(loader))
    with pytest.raises(UnsupportedError, match="Call that module as a whole"):
        model(x)
    assert released(engine) == 0


MIXING = {
    "statistics of the batch": lambda out, y: F.cross_entropy(out - out.mean(0), y),
    "mean of the batch": lambda out, y: F.cross_entropy(out - out.detach().mean(), y),
    "hard examples": lambda out, y: F.cross_entropy(out, y, reduction="none").topk(2)[0].mean(),
    "the next example": lambda out, y: F.cross_entropy(out.roll(1, 0), y),
    "number of examples": lambda out, y: F.cross_entropy(out, y) / y.size(0),
    "masked mean": lambda out, y: F.cross_entropy(out, y, reduction="none")[y != 0].mean(),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_that_mixes_examples_is_refused_before_anything_is_charged(name):
    engine, module, optimizer, loader = private()
    with pytest.raises(UnsupportedError):
        train(module, optimizer, loader, criterion=MIXING[name])
    assert released(engine) == 0


def test_an_error_within_the_private_step_charges_nothing_and_keeps_the_batches_in_order():
    model, data = unit_vectors()
    failing = [False]

    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            if failing[0]:
                raise OSError("disk")
            return self.inner(x)

    whole = Failing()
    optimizer = torch.optim.SGD(whole.parameters(), lr=4.0)
    engine, module, optimizer, loader = private(
        whole, data, batch_size=4, optimizer=optimizer, noise_multiplier=0.0
    )
    steps = 0
    for _ in range(3):
        for batch in loader:
            failing[0] = steps == 1
            steps += 1
            try:
                backward(module, batch)
            except UnsupportedError:
                assert released(engine) == 1
                continue
            optimizer.step()
    assert released(engine) == 5
    assert_counts(model, drawn(engine, range(5)))


@pytest.mark.parametrize("place", [0, 7, 59])
@pytest.mark.parametrize("physical", [None, 3])
def test_a_record_moves_a_step_by_at_most_1(place, physical):
    x, y = blobs()
    x[place] = 1e4  # long gradients
    without = x.clone()
    without[place] = torch.nan  # which has no influence
    moved = []
    for features in (x, without):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
        engine, module, optimizer, loader = private(
            model, TensorDataset(features, y), batch_size=30, optimizer=optimizer, noise_multiplier=0.0
        )
        weights = []
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=physical or 60, optimizer=optimizer
        ) as batches:
            for _ in range(4):
                for a, b in batches:
                    start = copy.deepcopy(model.state_dict())
                    optimizer.zero_grad()
                    F.cross_entropy(module(a), b).backward()
                    optimizer.step()
                    weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
                    model.load_state_dict(start)  # each step from the same weights
        moved.append(torch.stack(weights))
    distance = (moved[0] - moved[1]).norm(dim=1)
    torch.testing.assert_close(distance.max(), torch.tensor(1.0), rtol=1e-5, atol=0)
    assert [count for _, _, count in engine.accountant.history] == [8]


def test_two_engines_on_one_optimizer_share_what_guards_it():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private(model, optimizer=optimizer)
    engine, *loop = private(model, optimizer=optimizer, engine=PrivacyEngine(accountant="rdp", seed=1))
    train(*loop)
    assert released(engine) == 6


def test_tensors_of_a_batch_are_found_by_their_names():
    found = []
    for place in (None, 7, 20):
        rows = [{"x": a, "y": 2 * a + 3} for a in blobs()[0]]
        if place is not None:
            rows[place] = dict(reversed(rows[place].items()))
        model = mlp(classes=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=60.0)
        _, module, optimizer, loader = private(
            model, rows, batch_size=60, optimizer=optimizer, noise_multiplier=0.0
        )
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=1, optimizer=optimizer
        ) as batches:
            for batch in batches:
                F.mse_loss(module(batch["x"]), batch["y"]).backward()
                optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_a_record_with_its_keys_in_another_order_is_not_joined_with_others():
    rows = [{"x": a, "y": 2 * a + 3} for a in blobs()[0]]
    rows[7] = dict(reversed(rows[7].items()))
    engine, module, _, loader = private(mlp(classes=4), rows, batch_size=60, noise_multiplier=0.0)
    batch = next(iter(loader))
    with pytest.raises(UnsupportedError, match="of one form"):
        F.mse_loss(module(batch["x"]), batch["y"]).backward()
    assert released(engine) == 0
