"""`adamas check` on sound runs: every row passes or does not apply."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import adamas
import adamas.privatize
from adamas import rules
from adamas.check import CHECKS, FAIL, NOT_APPLICABLE, PASS, check
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from tests.support.checked_runs import NAMES, look, maker
from tests.support.sabotaged_runs import N, data, made


def test_a_sound_run_passes_and_every_row_is_there():
    rows = check(maker(seed=1))
    assert [row.name for row in rows] == NAMES
    verdicts = {row.name: row.verdict for row in rows}
    absent = {
        "dropout per example",
        "planted nodes",
        "frozen parameters",
        "unused parameters",
        "tied parameters",
        "ranks' seeds",
    }
    assert {name for name, verdict in verdicts.items() if verdict == NOT_APPLICABLE} == absent
    assert set(verdicts.values()) == {PASS, NOT_APPLICABLE}
    assert all(row.seen and not row.remedy for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("rule", rules.RULES)
def test_the_sensitivity_is_1_in_every_rules_geometry_and_is_reached(rule):
    verdict, seen = look("sensitivity in the geometry", maker(rule=rule, seed=0))
    assert verdict == PASS
    assert 0.999 < float(seen.split()[-1]) < 1.0005


@pytest.mark.parametrize("rule", ["adaclip", "scale-then-privatize"])
def test_the_noise_is_as_stated_in_a_geometry(rule):
    assert look("noise variance as stated", maker(rule=rule, seed=0))[0] == PASS


@pytest.mark.parametrize(
    "sampling", [{"sampling": "shuffled"}, {"sampling": "truncated-poisson", "max_batch_size": 40}]
)
@pytest.mark.parametrize("name", ["sampling as stated", "empty batch"])
def test_other_samplers_pass(sampling, name):
    assert look(name, maker(seed=2, **sampling, accountant="pld"))[0] == PASS


def test_shuffled_epochs_are_recorded():
    verdict, seen = look("every release recorded", maker(seed=2, sampling="shuffled", batch_size=60))
    assert verdict == PASS
    assert "3 steps" in seen


@pytest.mark.slow
def test_a_budget_is_checked_for_all_steps():
    verdict, seen = look("every release recorded", maker(noise_multiplier=None, epsilon=4.0, seed=0))
    assert verdict == PASS
    assert "all 12 steps" in seen


@pytest.mark.slow
def test_texts_with_tied_frozen_and_unused_parameters_pass(reader):
    rows = {row.name: row for row in check(reader)}
    assert {name for name, row in rows.items() if row.verdict != PASS} == {
        "dropout per example",
        "large example",
        "planted nodes",
        "ranks' seeds",
    }
    assert "'embedding.weight' = 'decoder.weight'" in rows["tied parameters"].seen
    assert "'spare'" in rows["unused parameters"].seen
    assert "losses" in rows["NaN example"].seen


def dropped():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2))


@pytest.mark.slow
def test_dropout_passes():
    rows = {row.name: row for row in check(maker(dropped, seed=0))}
    assert rows["dropout per example"].verdict == PASS
    assert all(row.verdict != FAIL for row in rows.values()), rows


def test_a_run_that_is_not_fresh_is_refused():
    run = maker()()
    next(iter(run))
    with pytest.raises(ValueError, match="fresh run"):
        check(lambda: run)
    with pytest.raises(TypeError, match="make_private"):
        check(lambda: None)


def test_a_replay_is_split_among_ranks_and_does_not_advance_the_noise():
    run = maker(seed=1)()
    noise, run.noise = run.noise, Silent(run.noise.seed)

    def released():
        return joined(whitened_sums(run, release_of(run, range(7), 0), run.geometry()))

    whole, run.loader.world_size = released(), 2
    shares = []
    for run.loader.rank in range(2):
        shares.append(released())
        run.noise.skip()
    assert torch.allclose(shares[0] + shares[1], whole)
    assert not torch.allclose(shares[0], whole)
    assert run.noise.draws == noise.draws == 0


@pytest.mark.parametrize(("streams", "verdict"), [("same", PASS), ("different", FAIL)])
def test_ranks_must_share_one_stream(streams, verdict):
    """Imitates the other rank; test_distributed.py has a real pair of processes."""
    told = []

    class Ranks:
        world_size = 2

        def roll_call(self, doing, facts):
            told.append(facts)
            if streams == "different":
                raise adamas.DistributedError("Expected the same random streams on all ranks.")

    def make_run():
        run = maker(seed=1)()
        run.ranks = Ranks()
        return run

    assert look("ranks' seeds", make_run)[0] == verdict
    assert len(told[0]["random streams"]) == 8


def sound_and_odd():
    """Makes a run with padded texts, random values in collate_fn, micro-batches and a counter of calls."""

    class Texts(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return torch.arange(1, 2 + index % 7, dtype=torch.float32) * (1 + index % 5), index % 2

    def collate(examples):
        x = nn.utils.rnn.pad_sequence([x for x, _ in examples], batch_first=True)
        x = F.pad(x, (0, 7 - x.shape[1]))
        return x + 0.01 * torch.randn_like(x), torch.tensor([y for _, y in examples])

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(7, 2), 0

        def forward(self, x):
            self.calls += 1
            return self.linear(F.dropout(x, 0.2))

    return made(model=Counting, dataset=Texts(), collate_fn=collate, micro_batch_size=16, engine="vmap")


def sound_and_extreme():
    """Makes a run in which some gradients are huge and the others vanish beside them."""
    x, y = data().tensors
    x = x.clone()
    x[::3] *= 30
    return made(dataset=TensorDataset(x, y))


@pytest.mark.audits
@pytest.mark.parametrize("make_run", [made, sound_and_odd, sound_and_extreme])
def test_no_row_fails_on_a_sound_run(make_run):
    rows = check(make_run)
    assert len(rows) == len(CHECKS)
    assert [row for row in rows if row.verdict == FAIL] == []
