"""A loop is charged for the releases that it makes, and its epsilon is that of Opacus for the same terms."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adamas import BudgetError, calibrate
from adamas.integrations.opacus import PrivacyEngine
from tests.support.opacus_loops import private, train

PAGE = Path(__file__).parents[3] / "docs" / "from_opacus.md"


def test_epochs_are_charged_one_by_one_for_as_long_as_the_loop_goes_on():
    engine, *loop = private()
    assert engine.get_epsilon(1e-3) == 0
    for epoch in (1, 2, 3):
        train(*loop)
        assert engine.accountant.history == [(1.0, 10 / 60, 6 * epoch)]
        expected = calibrate.epsilon(
            noise_multiplier=1.0, sampling_rate=10 / 60, steps=6 * epoch, delta=1e-3, accountant="rdp"
        )
        assert engine.get_epsilon(1e-3) == expected
        assert engine.accountant.get_epsilon(delta=1e-4) > expected
    train(*loop, steps=2)  # part of an epoch
    assert engine.accountant.history == [(1.0, 10 / 60, 20)]
    assert len(engine.accountant) == 1


def test_a_budget_pays_for_its_epochs_and_for_no_step_more():
    engine, *loop = private(epsilon=3.0)
    train(*loop, epochs=2)
    assert 2.9 < engine.get_epsilon(1e-3) <= 3.0
    spent = engine.accountant.history
    with pytest.raises(BudgetError, match="at most 12 steps"):
        train(*loop)
    assert engine.accountant.history == spent


def test_epochs_that_were_left_early_are_paid_for_later():
    engine, module, optimizer, loader = private(epsilon=3.0)
    train(module, optimizer, loader, steps=2)
    train(module, optimizer, loader, epochs=2)
    assert engine.run.steps_done == 12
    assert engine.get_epsilon(1e-3) <= 3.0


def test_the_noise_of_a_budget_is_that_of_calibrate():
    _, _, optimizer, _ = private(epsilon=3.0)
    assert optimizer.noise_multiplier == calibrate.noise_multiplier(
        epsilon=3.0, sampling_rate=10 / 60, steps=12, delta=1e-3, accountant="rdp"
    )
    assert (optimizer.max_grad_norm, optimizer.expected_batch_size) == (1.0, 10)


def test_shuffled_epochs_cost_one_release_on_all_data_each():
    engine, *loop = private(poisson_sampling=False, noise_multiplier=2.0)
    train(*loop, epochs=2)
    assert engine.accountant.history == [(2.0, 1.0, 2)]
    train(*loop, steps=1)
    assert engine.accountant.history == [(2.0, 1.0, 3)]


def test_drop_last_makes_the_steps_of_the_loader_that_was_given():
    engine, module, optimizer, loader = private(batch_size=25, loader_options={"drop_last": True})
    assert len(loader) == 2
    train(module, optimizer, loader)
    assert engine.accountant.history == [(1.0, 25 / 60, 2)]


def test_without_noise_epsilon_is_infinite():
    engine, *loop = private(noise_multiplier=0.0)
    train(*loop, steps=1)
    assert engine.get_epsilon(1e-3) == float("inf")


@pytest.mark.parametrize("delta", [0.02, 1, 0, -1e-5])
def test_a_delta_that_promises_nothing_is_refused(delta):
    engine, *_ = private()
    with pytest.raises(ValueError, match="1/N"):
        engine.get_epsilon(delta)


# --- compared with Opacus -----------------------------------------------------------------------------


def opacus_epsilon(kind, history, delta=1e-5):
    accountants = pytest.importorskip("opacus.accountants")
    accountant = {"rdp": accountants.RDPAccountant, "prv": accountants.PRVAccountant}[kind]()
    accountant.history = history
    return accountant.get_epsilon(delta=delta)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimal order is the:UserWarning")
def test_epsilons_are_those_of_opacus_for_the_same_releases():
    for kind, above in (("rdp", 1e-3), ("prv", 0.02)):
        engine, *loop = private(engine=PrivacyEngine(accountant=kind, seed=0))
        train(*loop, epochs=2)
        theirs = opacus_epsilon(kind, engine.accountant.history)
        ours = engine.get_epsilon(1e-5)
        # PRV returns an upper bound, which includes its error of 0.01.
        assert ours == pytest.approx(theirs, rel=1e-3) if kind == "rdp" else ours < theirs < ours + above


@pytest.mark.slow
def test_the_epsilons_on_the_page_are_computed():
    n, size, epochs = 1437, 256, 10
    computed = {}
    for drop_last, batches in ((False, 6), (True, 5)):
        loader = DataLoader(TensorDataset(torch.zeros(n, 1)), batch_size=size, drop_last=drop_last)
        assert len(loader) == batches
        engine = PrivacyEngine()
        model = nn.Linear(1, 1)
        _, _, private_loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        assert (len(private_loader), private_loader.sample_rate) == (batches, size / n)
        theirs = opacus_epsilon("prv", [(1.0, 1 / batches, batches * epochs)])
        same_rate = calibrate.epsilon(
            noise_multiplier=1.0, sampling_rate=1 / batches, steps=batches * epochs, delta=1e-5
        )
        ours = calibrate.epsilon(
            noise_multiplier=1.0, sampling_rate=size / n, steps=batches * epochs, delta=1e-5
        )
        assert same_rate < theirs < same_rate + 0.02
        computed[str(drop_last)] = [theirs, same_rate, ours]
    rows = dict(re.findall(r"^\| `(True|False)` \|(.*)\|$", PAGE.read_text(), flags=re.MULTILINE))
    for drop_last, values in computed.items():
        printed = [float(cell) for cell in rows[drop_last].split("|")[-3:]]
        assert printed == pytest.approx(values, abs=0.0101)  # rounded up
        assert all(shown >= value for shown, value in zip(printed, values, strict=True))


@pytest.mark.slow
def test_a_loader_of_opacus_yields_fewer_batches_than_it_accounts_for_at_some_lengths():
    data_loader = pytest.importorskip("opacus.data_loader")
    theirs = data_loader.DPDataLoader(TensorDataset(torch.zeros(93, 1)), sample_rate=1 / 93)
    assert len(theirs) == 92
    _, _, _, ours = private(data=TensorDataset(torch.zeros(93, 4)), batch_size=1)
    assert len(ours) == 93
