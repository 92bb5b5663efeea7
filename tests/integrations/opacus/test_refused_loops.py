"""What loops get refused: values of private data, calls that would run otherwise later, second releases."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adamas import UnsupportedError
from adamas.errors import EvaluationModeWarning
from adamas.integrations.opacus import Deferred
from tests.support.opacus_loops import mlp, private, train

VALUES = {
    "item": lambda out, loss: loss.item(),
    "float": lambda out, loss: float(loss),
    "format": lambda out, loss: f"{loss:.3f}",
    "detached": lambda out, loss: loss.detach().item(),
    "compare": lambda out, loss: loss < 1,
    "nan": lambda out, loss: torch.isnan(loss),
    "log": lambda out, loss: loss.log(),
    "correct": lambda out, loss: (out.argmax(1) == 1).sum().item(),
    "branch": lambda out, loss: bool(out.max() > 1),
    "rounded": lambda out, loss: round(loss, 2),
    "equal": lambda out, loss: loss != loss,
    "list": lambda out, loss: out.tolist(),
    "numpy": lambda out, loss: out.detach().cpu().numpy(),
    "length": lambda out, loss: len(out),
    "size": lambda out, loss: int(out.size(0)),
    "rows": lambda out, loss: list(out),
    "in place": lambda out, loss: out.add_(1),
    "plus is": lambda out, loss: exec("out += 1", {"out": out}),
    "assignment": lambda out, loss: exec("out[0] = 1", {"out": out}),
    "relu in place": lambda out, loss: F.relu(out, inplace=True),
    "hook": lambda out, loss: out.register_hook(print),
    "examples' backward": lambda out, loss: out.sum(1).backward(),
    "loss as a value": lambda out, loss: out - loss,
    "product of losses": lambda out, loss: loss * loss,
    "penalty": lambda out, loss: loss + torch.ones(3),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_a_batch_are_refused_with_the_line_and_the_remedy(name):
    engine, module, _, loader = private()
    x, y = next(iter(loader))
    output = module(x)
    with pytest.raises(UnsupportedError, match=r"test_refused_loops\.py"):
        VALUES[name](output, F.cross_entropy(output, y))
    assert engine.accountant.history == []


def test_text_of_deferred_values_says_nothing_about_them():
    _, module, _, loader = private()
    x, y = next(iter(loader))
    assert repr(x) == repr(module(x)) == "Deferred(a value of private data)"
    assert isinstance(x, Deferred)
    assert str(F.cross_entropy(module(x), y)) == "DeferredLoss(mean of private losses)"


def test_values_of_an_earlier_turn_are_refused():
    _, module, _, loader = private()
    batches = iter(loader)
    x, y = next(batches)
    loss = F.cross_entropy(module(x), y)
    z, t = next(batches)
    with pytest.raises(RuntimeError, match="several turns"):
        loss + F.cross_entropy(module(z), t)
    with pytest.raises(RuntimeError, match="earlier batch"):
        loss.backward()


class Rounded(torch.autograd.Function):
    """Rounds, and has the gradient of not rounding."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_calls_that_would_run_otherwise_later_are_refused():
    _, module, _, loader = private()
    x, y = next(iter(loader))
    with torch.no_grad():
        output = module(x)
    with pytest.raises(UnsupportedError, match=r"torch\.no_grad\(\)"):
        F.cross_entropy(output, y).backward()
    with torch.autocast("cpu"), pytest.raises(UnsupportedError, match="autocast"):
        module(x)
    with pytest.raises(UnsupportedError, match=r"autograd\.Function"):
        F.cross_entropy(Rounded.apply(module(x)), y).backward()
    penalty = next(module.parameters()).square().sum()
    with pytest.raises(UnsupportedError, match="weight_decay"):
        F.cross_entropy(module(x), y) + penalty


def test_a_loss_with_another_reduction_is_refused_before_anything_is_charged():
    engine, module, _, loader = private(loss_reduction="sum")
    x, y = next(iter(loader))
    with pytest.raises(ValueError, match="reduction='sum'"):
        F.cross_entropy(module(x), y).backward()
    with pytest.raises(ValueError, match="one reduction"):
        F.cross_entropy(module(x), y) + F.cross_entropy(module(x), y, reduction="sum")
    assert engine.accountant.history == []


ARGUMENTS = [{"gradient": torch.tensor(2.0)}, {"retain_graph": True}, {"create_graph": True}, {"inputs": []}]


@pytest.mark.parametrize("given", ARGUMENTS, ids=lambda given: next(iter(given)))
def test_arguments_of_backward_are_refused_before_anything_is_charged(given):
    engine, module, optimizer, loader = private()
    x, y = next(iter(loader))
    loss = F.cross_entropy(module(x), y)
    with pytest.raises(UnsupportedError, match=r"backward\(\) without arguments.*test_refused_loops\.py"):
        loss.backward(**given)
    assert engine.accountant.history == []
    loss.backward(retain_graph=False)
    optimizer.step()


def test_releases_of_several_batches_do_not_add_up():
    engine, module, optimizer, loader = private()
    batches = iter(loader)
    for place in range(2):
        x, y = next(batches)
        loss = F.cross_entropy(module(x), y) / 2
        if place == 0:
            loss.backward()
    with pytest.raises(RuntimeError, match=r"releases do not add up.*BatchMemoryManager"):
        loss.backward()
    assert [count for _, _, count in engine.accountant.history] == [1]  # the second one was not made
    optimizer.step()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_release_that_zero_grad_drops_may_be_followed_by_another(set_to_none):
    engine, module, optimizer, loader = private()
    for place, (x, y) in enumerate(loader):
        optimizer.zero_grad(set_to_none)
        F.cross_entropy(module(x), y).backward()
        if place % 2:  # as a script that skips steps whose gradient is too long
            optimizer.step()
    assert [count for _, _, count in engine.accountant.history] == [6]


def test_a_constant_that_changes_before_backward_is_refused():
    engine, module, optimizer, loader = private()
    scale = torch.ones(4)
    batches = iter(loader)
    x, y = next(batches)
    loss = F.cross_entropy(module(x * scale), y)
    scale.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"test_refused_loops\.py.*changed in place before loss\.backward"):
        loss.backward()
    assert engine.accountant.history == []
    for x, y in batches:  # between the turns it may change
        scale.mul_(0.5)
        optimizer.zero_grad()
        F.cross_entropy(module(x * scale), y).backward()
        optimizer.step()


COPIES = [copy.copy, copy.deepcopy, pickle.dumps]


@pytest.mark.parametrize("copied", COPIES)
def test_a_private_optimizer_is_not_copied_and_works_on_after_an_attempt(copied):
    engine, *loop = private()
    _, optimizer, loader = loop
    with pytest.raises(TypeError, match=r"optimizer\.state_dict\(\)"):
        copied(optimizer)
    train(*loop)
    assert [count for _, _, count in engine.accountant.history] == [6]
    for part in (loader, next(iter(loader))[0], engine):
        if copied is not copy.copy:
            with pytest.raises(TypeError, match="run cannot be copied"):
                copied(part)


def test_a_model_whose_dropout_is_off_is_told_at_the_first_step():
    model = nn.Sequential(mlp(), nn.Dropout(0.5)).eval()
    _, *loop = private(model)
    with pytest.warns(EvaluationModeWarning, match=r"model\.train\(\)") as warned:
        train(*loop)
    assert len(warned) == 1
    assert warned[0].filename.endswith("opacus_loops.py")  # the line of loss.backward()


def test_a_model_that_the_loop_puts_into_training_mode_is_not_warned_about():
    model = nn.Sequential(mlp(), nn.Dropout(0.5)).eval()
    _, module, optimizer, loader = private(model)
    module.train()
    train(module, optimizer, loader)


def test_a_copy_and_the_module_of_another_run_do_not_pass_for_the_module_that_is_trained():
    engine, module, _, loader = private()
    _, other, _, _ = private()
    x, y = next(iter(loader))
    for stranger in (copy.deepcopy(module), other):
        with pytest.raises(UnsupportedError, match=r"a copy.*Freeze another model"):
            F.cross_entropy(module(x) + stranger(x), y).backward()
    assert engine.accountant.history == []


def test_a_frozen_copy_is_a_teacher_with_weights_of_its_own():
    found = []
    for wrapped in (True, False):
        model = mlp()
        _, module, optimizer, loader = private(model, noise_multiplier=0.0)
        teacher = copy.deepcopy(module if wrapped else model).requires_grad_(False)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                aim = teacher(x) + 1
            (F.cross_entropy(module(x), y) + F.mse_loss(module(x), aim)).backward()
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)
