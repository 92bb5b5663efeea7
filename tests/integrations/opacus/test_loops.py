"""Loops that scripts have: batches of any kind, schedulers, several losses."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from adamas import UnsupportedError, rules
from adamas.errors import SlowEngineWarning
from adamas.integrations.opacus import BatchMemoryManager, PrivacyEngine
from tests.support.opacus_loops import blobs, mlp, private, train


class Records(Dataset):
    """Records as dictionaries."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        x, y = blobs()
        return {"x": x[index], "more": {"y": y[index]}}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_loop_over_dictionaries_makes_the_steps_of_one_over_tuples():
    found = []
    for data in (None, Records()):
        model = mlp()
        _, module, optimizer, loader = private(model, data)
        for batch in loader:
            x, y = batch if data is None else (batch["x"], batch["more"]["y"])
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
        found.append(weights(model))
    assert torch.equal(*found)


@pytest.mark.slow
def test_workers_and_micro_batches_change_no_step():
    found = []
    for workers, physical in ((0, 60), (0, 4), (2, 60), (2, 4)):
        model = mlp()
        _, module, optimizer, loader = private(
            model, Records(), loader_options={"num_workers": workers}, noise_multiplier=0.5
        )
        for batch in loader:  # and then the workers begin again
            F.cross_entropy(module(batch["x"]), batch["more"]["y"]).backward()
            optimizer.step()
            break
        for _ in range(2):
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
            ) as batches:
                for place, batch in enumerate(batches):
                    optimizer.zero_grad()
                    F.cross_entropy(module(batch["x"]), batch["more"]["y"]).backward()
                    optimizer.step()
                    if place == 2:
                        break
        found.append(weights(model))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)


def test_batches_of_one_tensor_and_of_a_user_collate():
    data = TensorDataset(blobs()[0])

    def collate(examples):
        return torch.stack([x for (x,) in examples])

    model = nn.Linear(4, 4)
    engine, module, optimizer, loader = private(model, data, loader_options={"collate_fn": collate})
    for batch in loader:
        F.mse_loss(module(batch), batch).backward()
        optimizer.step()
    assert engine.run.steps_done == len(loader) == 6


EQUAL = {
    "functions": lambda m, x, y: F.cross_entropy(m(x), y),
    "devices and views": lambda m, x, y: F.cross_entropy(
        m(x.to("cpu", non_blocking=True).float().view(x.size(0), -1)).view(x.shape[0], 3), y.view(-1).long()
    ),
    "log softmax": lambda m, x, y: F.nll_loss(F.log_softmax(m(x), dim=1), y),
    "own mean": lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").mean(),
    "torch.mean": lambda m, x, y: torch.mean(F.cross_entropy(m(x), y, reduction="none")),
    "by hand": lambda m, x, y: -(m(x).log_softmax(1) * F.one_hot(y, 3)).sum(dim=1).mean(),
    "indexed": lambda m, x, y: -m(x).log_softmax(1).gather(1, y[:, None])[:, 0].mean(),
    "two halves": lambda m, x, y: 0.5 * F.cross_entropy(m(x), y) + F.cross_entropy(m(x), y) / 2,
    "tensor weights": lambda m, x, y: torch.tensor(2.0) * F.cross_entropy(m(x), y) * 0.5 - 3,
    "numbers of NumPy": lambda m, x, y: np.float32(0.5) * F.cross_entropy(m(x), y) * np.float64(2),
    "difference": lambda m, x, y: -(0 - 2 * F.cross_entropy(m(x), y)) - F.cross_entropy(m(x), y),
    "unit weights": lambda m, x, y: (torch.ones(3)[y] * F.cross_entropy(m(x), y, reduction="none")).mean(),
    "keywords": lambda m, x, y: F.cross_entropy(input=m(x), target=y, label_smoothing=0.0),
    "ignored label": lambda m, x, y: F.cross_entropy(m(x), y, ignore_index=-1),
}


@pytest.fixture(scope="module")
def expected():
    model = mlp()
    _, *loop = private(model)
    train(*loop)
    return weights(model)


@pytest.mark.parametrize("name", EQUAL)
def test_ways_to_write_one_loss_make_the_same_steps(name, expected):
    model = mlp()
    engine, module, optimizer, loader = private(model)
    for x, y in loader:
        optimizer.zero_grad()
        EQUAL[name](module, x, y).backward()
        optimizer.step()
    torch.testing.assert_close(weights(model), expected, rtol=1e-4, atol=1e-5)
    assert engine.run.engine == "bookkeeping"


def test_a_ghost_criterion_is_called_as_in_opacus(expected):
    model = mlp()
    _, module, optimizer, criterion, loader = private(model, grad_sample_mode="ghost")
    for x, y in loader:
        output = module(x)
        criterion(output, y, shape=output.shape).backward()
        optimizer.step()
    torch.testing.assert_close(weights(model), expected, rtol=1e-4, atol=1e-5)
    plain = criterion(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert plain.item() == pytest.approx(1.0986, abs=1e-4)


def test_a_scheduler_of_the_returned_optimizer_sets_the_rate():
    model = mlp()
    _, module, optimizer, loader = private(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    rates = []
    for _ in range(2):
        train(module, optimizer, loader)
        scheduler.step()
        rates.append(optimizer.original_optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.05, 0.005])
    assert optimizer.param_groups is optimizer.original_optimizer.param_groups


def test_a_rule_subtracts_the_variance_of_the_noise():
    model = mlp()
    rule = rules.AdamBC(model.parameters(), lr=0.01)
    engine, *loop = private(model, optimizer=rule, noise_multiplier=50.0)
    train(*loop)
    assert engine.run.diagnostics()["overall"]["on_floor"] > 0.9  # the second moment is that of the noise


def test_a_step_takes_a_closure_as_in_opacus():
    model = mlp()
    engine, module, optimizer, loader = private(model)
    for x, y in loader:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert engine.run.steps_done == 6


def test_a_seed_makes_noise_reproducible_and_no_seed_does_not():
    found = []
    for seed in (3, 3, None, None):
        model = mlp()
        _, *loop = private(model, engine=PrivacyEngine(accountant="rdp", seed=seed))
        train(*loop)
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[2], found[3])


def test_secure_mode_takes_secure_noise():
    engine, *loop = private(engine=PrivacyEngine(accountant="rdp", secure_mode=True))
    train(*loop, steps=2)
    assert engine.run.noise.name == "secure"
    assert engine.run.steps_done == 2


def test_the_module_evaluates_plain_tensors_and_offers_its_attributes():
    model = mlp()
    model.note = "mine"
    _, module, _, loader = private(model)
    x, _ = blobs()
    assert torch.equal(module(x), model(x))
    assert module.note == "mine"
    assert list(module.state_dict()) == [f"_module.{name}" for name in model.state_dict()]
    assert all(p is q for p, q in zip(module.parameters(), model.parameters(), strict=True))
    module.eval()
    assert not model.training
    assert (len(loader), len(loader.dataset), loader.sample_rate) == (6, 60, 10 / 60)


def test_the_run_behind_the_loop_explains_itself_once_it_knows_the_loss():
    engine, module, optimizer, loader = private()
    with pytest.raises(RuntimeError, match=r"first loss\.backward\(\)"):
        engine.run.explain()
    train(module, optimizer, loader)
    assert len(engine.run.explain().costs) == 4
    assert "Poisson" in engine.run.privacy_statement()
    assert "weight" in next(iter(copy.deepcopy(module).state_dict()))


class Branching(nn.Module):
    """Takes a branch by the values of each example, which only the slowest engine can follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.stack([self.layer(row) * (2.0 if bool(row.sum() > 0) else 1.0) for row in x])


def test_a_model_that_the_fast_engines_refuse_is_trained_by_the_slow_one():
    engine, *loop = private(Branching())
    with pytest.warns(SlowEngineWarning, match="'loop'") as warned:
        train(*loop)
    assert warned[0].filename.endswith("opacus_loops.py")  # the line of loss.backward()
    assert engine.run.engine == "loop"
    assert engine.run.steps_done == 6


def test_another_computation_within_the_run_is_tried_and_gets_an_engine_of_its_own():
    engine, module, optimizer, loader = private()
    engines = []
    for place, (x, y) in enumerate(loader):
        output = module(x)
        if place % 2:
            output = torch.linalg.eigvalsh(output[:, :, None] * output[:, None, :])
        F.cross_entropy(output, y).backward()
        optimizer.step()
        engines.append(engine.run.engine)
    assert engines[0] == engines[2] == "bookkeeping"
    assert engine.run.steps_done == 6


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor


class WithLoss(nn.Module):
    """A model that computes its own mean loss, as those of `transformers` do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.layer(x)
        return Output(logits, F.cross_entropy(logits, labels))


def test_the_logits_of_an_output_train_and_its_own_mean_loss_is_refused():
    engine, module, optimizer, loader = private(WithLoss())
    x, y = next(iter(loader))
    with pytest.raises(UnsupportedError, match="a mean that the module took itself"):
        module(x, labels=y).loss.backward()
    F.cross_entropy(module(x, labels=y).logits, y).backward()
    optimizer.step()
    assert engine.run.steps_done == 1
