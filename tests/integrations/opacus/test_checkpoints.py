"""Checkpoints of a loop continue the whole run: its spending, and with a seed its noise."""

import pytest
import torch

from adamas.integrations.opacus import PrivacyEngine
from tests.support.opacus_loops import mlp, private, train


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def made(**options):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    engine = PrivacyEngine(accountant="rdp", seed=5)
    return model, *private(model, engine=engine, optimizer=optimizer, **options)


@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_a_loop_that_was_killed_continues_bit_for_bit_and_charges_each_step_once(tmp_path, epsilon):
    model, engine, *loop = made(epsilon=epsilon)
    train(*loop, epochs=2)
    whole = weights(model), engine.get_epsilon(1e-3)

    first, engine, module, optimizer, loader = made(epsilon=epsilon)
    train(module, optimizer, loader)
    train(module, optimizer, loader, steps=2)
    engine.save_checkpoint(path=tmp_path / "run", module=module, optimizer=optimizer)
    train(module, optimizer, loader, steps=3)  # and then the process dies
    died_at = engine.get_epsilon(1e-3)
    del engine, module, optimizer, loader, first

    second, engine, module, optimizer, loader = made(epsilon=epsilon)
    engine.load_checkpoint(path=tmp_path / "run", module=module, optimizer=optimizer)
    assert engine.run.steps_done == 8
    assert engine.get_epsilon(1e-3) == died_at  # the journal knows the steps that followed
    train(module, optimizer, loader, steps=4)
    assert torch.equal(weights(second), whole[0])
    assert engine.get_epsilon(1e-3) == whole[1]


def test_a_state_of_the_optimizer_alone_is_refused_before_anything_is_charged():
    _, _, *loop = made()
    train(*loop)
    state = loop[1].state_dict()
    _, engine, module, optimizer, loader = made()
    optimizer.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"not in this run's ledger.*PrivacyEngine\.load_checkpoint"):
        train(module, optimizer, loader)
    assert engine.accountant.history == []


def test_a_run_that_has_released_something_does_not_go_back(tmp_path):
    _, engine, module, optimizer, loader = made()
    engine.save_checkpoint(path=tmp_path / "run", module=module, optimizer=optimizer)
    train(module, optimizer, loader)
    with pytest.raises(RuntimeError, match="released nothing"):
        engine.load_checkpoint(path=tmp_path / "run", module=module, optimizer=optimizer)


def test_another_noise_is_refused(tmp_path):
    _, engine, module, optimizer, loader = made()
    train(module, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "run", module=module)
    _, other, module, optimizer, _ = made(noise_multiplier=2.0)
    with pytest.raises(ValueError, match="noise_multiplier"):
        other.load_checkpoint(path=tmp_path / "run", module=module, optimizer=optimizer)


def test_objects_of_another_run_are_refused(tmp_path):
    _, engine, module, _, _ = made()
    _, _, _, foreign, _ = made()
    for given in ({"module": mlp()}, {"module": module, "optimizer": foreign}):
        with pytest.raises(ValueError, match="those that make_private returned"):
            engine.save_checkpoint(path=tmp_path / "run", **given)


@pytest.mark.parametrize(
    "name",
    ["noise_scheduler", "grad_clip_scheduler", "checkpoint_dict", "torch_save_kwargs"],
)
def test_what_a_checkpoint_cannot_hold_is_refused_by_name(tmp_path, name):
    _, engine, module, optimizer, _ = made()
    with pytest.raises(TypeError, match=name):
        engine.save_checkpoint(path=tmp_path / "run", module=module, optimizer=optimizer, **{name: {}})
