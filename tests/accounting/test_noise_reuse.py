"""No noise is added to two sums: in runs that are resumed, extended, copied or forked, and across ranks."""

import copy
import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import adamas
from adamas._numerics.digest import KeyedDigest, _add_by_numpy
from adamas._streams import Seed
from adamas.secure_noise import SecureNoise
from tests.support import distributed_ranks as ranks
from tests.support.keys_of_noise import shared
from tests.support.small_runs import finish, make_data, make_model, make_run
from tests.support.stopped_runs import stopped


def releases_per_batch(run):
    """Returns how many releases each batch had, sorted."""
    entries = run.ledger.entries
    return sorted(len(getattr(event.event, "events", [0])) for event, count in entries for _ in range(count))


def test_the_fixture_sees_a_key_that_serves_two_sums(keys):
    finish(make_run())
    finish(make_run(model=make_model(seed=1)))  # one seed for two runs: what the documentation warns against
    assert len(shared(keys)) == 6


def test_a_resumed_and_extended_run_draws_fresh_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = stopped(make_run(), 2)
    run.save(file)
    stopped(run, 4)
    other = adamas.load(file, make_run())
    other.extend(steps=3, noise_multiplier=0.7)
    finish(other)
    assert shared(keys) == []
    # Batches of both runs have a release with each multiplier, the others have one release.
    assert releases_per_batch(other) == [1, 1, 1, 2, 2]


def test_a_run_extended_from_a_state_dict_draws_fresh_noise(keys):
    run = stopped(make_run(), 2)
    state = copy.deepcopy(run.state_dict())
    finish(run)
    other = make_run()
    other.load_state_dict(state)
    other.extend(steps=4, noise_multiplier=0.7)
    finish(other)
    assert shared(keys) == []


class Augmented(Dataset):
    """Adds random values to examples, from NumPy's, Python's or torch's generator or from its own."""

    def __init__(self, kind, state=0):
        self.inner, self.kind = make_data(), kind
        self.own = np.random.default_rng(state)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        x, y = self.inner[i]
        draw = {
            "numpy": lambda: np.random.rand(),
            "python": lambda: random.random(),
            "torch": lambda: float(torch.rand(())),
            "own": lambda: self.own.random(),
        }[self.kind]
        return x + draw(), y


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["numpy", "python", "torch"])
def test_a_resumed_run_repeats_its_augmentation(tmp_path, keys, kind, workers):
    def fresh(workers=workers):
        return make_run(data=Augmented(kind), num_workers=workers, micro_batch_size=5)

    expected = finish(fresh())
    file = tmp_path / "run.safetensors"
    run = stopped(fresh(), 1)
    run.save(file)
    stopped(run, 4)  # where it dies
    np.random.seed(99)
    random.seed(99)
    torch.manual_seed(99)
    other = adamas.load(file, fresh())
    assert torch.equal(finish(other), expected)
    assert shared(keys) == []
    assert sum(count for _, count in other.ledger.entries) == 6
    assert torch.equal(finish(fresh(workers=0)), expected)


def test_a_repeated_step_that_differs_gets_fresh_noise_and_is_charged(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run(data=Augmented("own"))
    run.save(file)
    stopped(run, 3)
    other = adamas.load(file, make_run(data=Augmented("own", state=1)))
    stopped(other, 2)
    third = adamas.load(file, make_run(data=Augmented("own", state=2)))
    finish(third)
    assert shared(keys) == []
    assert releases_per_batch(third) == [1, 1, 1, 2, 3, 3]


def test_after_a_changed_learning_rate_noise_is_fresh(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    stopped(run, 4)
    other = adamas.load(file, make_run())
    for group in other.rule.param_groups:
        group["lr"] *= 3
    finish(other)
    assert shared(keys) == []
    # The first release is bit-equal, and is counted once.
    assert releases_per_batch(other) == [1, 1, 1, 2, 2, 2]


@pytest.mark.subprocess
def test_only_one_rank_draws_and_no_key_serves_two_sums(tmp_path):
    pool = ranks.Pool(tmp_path)
    try:
        (used, ledger), (others, other_ledger) = pool(ranks.used_keys, str(tmp_path))
    finally:
        pool.close()
    assert others == []
    assert ledger == other_ledger
    served = {}
    for *key, std, sums in used:
        served.setdefault(tuple(key), set()).add((std, sums))
    assert len(served) > 6
    assert all(len(uses) == 1 for uses in served.values())


def test_copies_and_forks_do_not_repeat_noise():
    run = make_run(seed=None)
    for made in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            made(run)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(run.noise)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(SecureNoise())
    for run in (make_run(seed=None), make_run()):  # with a given seed the spending would be repeated
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            message = "trained"
            try:
                finish(run)
            except RuntimeError as error:
                message = str(error)
            os.write(writer, message.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert "make_private in the process that trains" in os.read(reader, 1000).decode()
        os.close(reader)
        os.close(writer)


def test_a_digest_changes_with_one_bit_and_is_the_same_without_numba():
    digest = KeyedDigest(Seed(5))
    generator = torch.Generator().manual_seed(0)
    for size in (0, 1, 1023, 1024, 1025, 5000):
        x = torch.randn(size, generator=generator)
        whole = digest([x, 0.5])
        assert digest([x.clone(), 0.5]) == whole
        assert digest([x, 0.25]) != whole
        assert KeyedDigest(Seed(6))([x, 0.5]) != whole
        for place in {0, size // 2, size - 1} if size else ():
            y = x.clone()
            y.view(torch.int32)[place] ^= 1
            assert digest([y, 0.5]) != whole
    blocks = torch.randint(-(2**31), 2**31, (3, 2, 512), generator=generator).to(torch.int32)
    words = blocks.numpy().view(np.uint32)
    sums = np.zeros((3, 2), dtype=np.uint64)
    _add_by_numpy(words, digest._keys, sums)
    expected = [
        [
            sum(
                int(x + a) % 2**32 * (int(y + b) % 2**32)
                for x, y, a, b in zip(*block.astype(object), *pair, strict=True)
            )
            % 2**64
            for pair in digest._keys.astype(object).reshape(2, 2, 512)
        ]
        for block in words
    ]
    assert sums.tolist() == expected
    assert digest._sums(words.reshape(-1)).tolist() == expected
