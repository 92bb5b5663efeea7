"""Ranks that fail, differ or are set up wrongly: every rank raises, and nothing is released."""

import re

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adamas.distributed import Ranks, fingerprint
from tests.support import distributed_ranks as ranks

pytestmark = pytest.mark.subprocess


def test_an_exception_in_one_ranks_loss_is_an_error_on_both_and_releases_nothing(pool):
    (peer, at_peer, after_peer), (own, at_own, after_own) = pool(ranks.fail_in_the_loss, 3)
    assert (own.kind, own.text) == ("ZeroDivisionError", "the loss of rank 1")
    assert peer.kind == "DistributedError"
    assert "Rank 1 of 2 failed with ZeroDivisionError" in peer.text
    assert "step 3" in peer.text
    assert at_peer == at_own
    assert at_peer[0] == 2
    expected = ranks.outcome(ranks.make_run(engine="loop"))
    np.testing.assert_array_equal(after_peer, after_own)
    np.testing.assert_allclose(after_peer, expected["parameters"], rtol=1e-9, atol=1e-11)


def test_a_model_that_one_rank_refuses_is_an_error_on_both(pool):
    peer, own = pool(ranks.construct_unsupported)
    assert own.kind == "UnsupportedError"
    assert "BatchNorm1d" in own.text
    assert (peer.kind, "Rank 1 of 2 failed with UnsupportedError" in peer.text) == ("DistributedError", True)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ({"seed": 8}, "seed"),
        ({"seed": None}, "seed"),
        ({"data": ranks.make_data(61)}, "dataset_size"),
        ({"model": ranks.make_model(1)}, "model's values"),
        ({"noise_multiplier": 1.5}, "noise_multiplier"),
        ({"clip_norm": 2.0}, "clip_norm"),
        ({"rule": "adam"}, "rule"),
        ({"lr": 0.06}, "rule's options"),
        ({"ema": 0.9}, "ema"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_ranks_that_were_set_up_differently_are_refused(pool, odd, name):
    for failure in pool(ranks.construct, odd):
        assert failure.kind == "DistributedError"
        assert f"Expected the same {name} on all ranks at make_private" in failure.text
        assert not re.search(r"\b[78]\b", failure.text)  # no error shows a seed
    assert pool(ranks.construct, {}) == [6, 6]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("weights", "Expected the same parameters and geometry on all ranks at step 3"),
        ("lr", "Expected the same parameters and geometry on all ranks at step 4"),
        ("noise", "Expected the same noise_multiplier on all ranks at step 3"),
        ("draws", "Expected the same position of the noise on all ranks at step 3"),
    ],
)
def test_ranks_that_diverge_raise(pool, how, words):
    for failure in pool(ranks.drift, how):
        assert failure.kind == "DistributedError"
        assert words in failure.text


def test_a_rank_that_makes_another_call_is_named(pool):
    peer, own = pool(ranks.drift, "load")
    assert own.kind == "RuntimeError"  # a run that has released something loads no state
    assert "Rank 1 of 2 failed with RuntimeError before all could go on with step 3" in peer.text


def test_wrapped_and_sharded_models_are_refused_with_the_remedy(pool):
    for failure in pool(ranks.wrapped_model, "ddp"):
        assert failure.kind == "UnsupportedError"
        assert "DistributedDataParallel" in failure.text
        assert "Pass the plain module" in failure.text
    for failure in pool(ranks.wrapped_model, "fsdp"):
        assert failure.kind == "UnsupportedError"
        assert "'0.weight' is a DTensor, sharded by fully_shard" in failure.text


def test_devices_without_a_backend_are_refused(pool):
    for failure in pool(ranks.check_device, "cuda"):
        assert failure.kind == "UnsupportedError"
        assert "has gloo for parameters on cuda. Use gloo for CPUs and nccl for CUDA devices" in failure.text
    assert all("has no backend for parameters on mps" in f.text for f in pool(ranks.check_device, "mps"))
    assert pool(ranks.check_device, "cpu") == [None, None]


def test_raw_moments_are_refused(pool):
    for failure in pool(ranks.raw_run):
        assert (failure.kind, "raw=False" in failure.text) == ("ValueError", True)


def test_without_torchrun_or_a_group_the_error_says_what_to_do(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node"):
        ranks.make_run(distributed=True)
    for wrong in ("yes", 1, None, dist.GroupMember.NON_GROUP_MEMBER):
        with pytest.raises(TypeError, match="distributed="):
            ranks.make_run(distributed=wrong)
    assert Ranks.of(False) is None


def test_fingerprints_differ_if_a_single_bit_differs():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        values = (torch.randn(50, generator=generator) * 9).to(dtype)
        name = fingerprint([values])
        assert fingerprint([values.clone()]) == name
        for i in range(len(values)):
            changed = values.clone()
            changed.view(torch.uint8)[i * values.element_size()] ^= 1
            assert fingerprint([changed]) != name
    x = torch.ones(3)
    different = [
        [x],
        [x, x],
        [x, 1.0],
        [x.view(3, 1)],
        [x.double()],
        [],
        [[x]],
        [{"a": x}],
        [{"b": x}],
        [None],
    ]
    assert len({fingerprint(values) for values in different}) == len(different)
    assert fingerprint([object()]) == fingerprint([object()])  # no memory address enters
