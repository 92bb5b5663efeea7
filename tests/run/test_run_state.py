"""Seeds and `state_dict`: a resumed run is bit-equal, and a secret seed stays secret."""

import copy
import io
import pickle

import pytest
import torch

from adamas import rules
from tests.support.small_runs import finish, make_model, make_run
from tests.support.stopped_runs import stopped


def test_a_state_with_another_max_batch_size_is_refused():
    truncated = {"sampling": "truncated-poisson", "steps": 2}
    run = make_run(max_batch_size=20, **truncated)
    finish(run)
    with pytest.raises(ValueError, match="max_batch_size"):
        make_run(max_batch_size=40, **truncated).load_state_dict(run.state_dict())


def test_only_a_seed_makes_a_run_reproducible():
    assert torch.equal(finish(make_run(seed=4)), finish(make_run(seed=4)))
    assert not torch.equal(finish(make_run(seed=4)), finish(make_run(seed=5)))
    assert not torch.equal(finish(make_run(seed=None)), finish(make_run(seed=None)))


def test_only_a_seeded_run_warns_that_its_noise_can_be_removed():
    assert "seed" in make_run(seed=4).privacy_statement()
    assert "seed" not in make_run(seed=None).privacy_statement()


@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_a_resumed_run_is_bit_equal(name, sampling):
    def fresh():
        model = make_model()
        rule = rules.RULES[name](model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(rule, T_max=6)
        return make_run(model, rule, sampling=sampling, scheduler=scheduler, ema=0.9)

    whole = fresh()
    expected = finish(whole)
    run = stopped(fresh(), 3)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    resumed = fresh()
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(finish(resumed), expected)
    assert resumed.ledger.entries == whole.ledger.entries
    for p, q in zip(resumed.ema_model.parameters(), whole.ema_model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_loading_an_earlier_state_is_refused_because_it_would_repeat_noise():
    run = make_run()
    start = copy.deepcopy(run.state_dict())
    finish(run)
    spent = run.epsilon()
    with pytest.raises(RuntimeError, match="released nothing"):
        run.load_state_dict(start)
    assert run.epsilon() == spent


def test_a_secret_seed_is_neither_copied_nor_pickled():
    run = make_run(seed=None)
    with pytest.raises(TypeError, match="secret seed"):
        pickle.dumps(run.noise)
    with pytest.raises(TypeError, match="secret seed"):
        copy.deepcopy(run.noise)
    assert pickle.loads(pickle.dumps(make_run(seed=3).noise)).seed.given == 3


def test_a_secret_seed_is_in_no_state():
    run = make_run(seed=None)
    finish(run)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    secret = run.noise.seed._secret
    assert secret not in file.getvalue()
    assert str(int.from_bytes(secret, "big")).encode() not in file.getvalue()
    assert run.state_dict()["settings"]["seed"] is None


def test_a_shuffled_run_without_a_seed_resumes_only_between_epochs():
    run = stopped(make_run(seed=None, sampling="shuffled", steps=10), 3)
    with pytest.raises(ValueError, match="seed="):
        make_run(seed=None, sampling="shuffled", steps=10).load_state_dict(run.state_dict())


def test_a_state_of_other_settings_is_refused_and_changes_nothing():
    state = make_run().state_dict()
    other = make_run(noise_multiplier=2.0)
    before = finish(make_run(noise_multiplier=2.0))
    with pytest.raises(ValueError, match="noise_multiplier"):
        other.load_state_dict(state)
    assert torch.equal(finish(other), before)
