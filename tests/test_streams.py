"""Seeds and their streams: streams differ by place, and a secret seed is never shown or saved."""

import pickle

import numpy as np
import pytest
from scipy import stats

from adamas import _streams
from adamas._streams import Seed
from adamas.sampling import Poisson
from tests.support.p_values import ALPHA
from tests.support.secure_noises import fixed
from tests.support.small_runs import finish, make_run


def test_no_text_shows_a_secret_seed():
    seed = Seed()
    sampler = Poisson(100, 10, seed)
    number = int.from_bytes(seed._secret, "big")
    shown = repr(seed) + str(seed) + repr(sampler) + repr(vars(sampler)) + repr(seed.given)
    assert "secret" in repr(seed)
    for form in (str(number), f"{number:x}", repr(seed._secret), seed._secret.hex()):
        assert form not in shown


def test_a_given_seed_is_shown_and_secret_seeds_differ():
    assert repr(Seed(7)) == "Seed(7)"
    assert len({Seed()._secret for _ in range(20)}) == 20


def test_no_state_or_statement_of_a_run_contains_its_secret_seed():
    run = make_run(seed=None, steps=2)
    finish(run)
    secret = run.noise.seed._secret
    number = int.from_bytes(secret, "big")
    saved = pickle.dumps(run.state_dict())
    for form in (secret, secret[::-1], str(number).encode(), secret.hex().encode()):
        assert form not in saved
        assert form not in (repr(run) + run.privacy_statement()).encode()


@pytest.mark.parametrize("cipher", [True, False])
def test_a_stream_is_a_prefix_of_a_longer_one_and_differs_by_place(monkeypatch, cipher):
    if not cipher:
        monkeypatch.setattr(_streams, "ciphers", None)
    else:
        pytest.importorskip("cryptography")
    seed = fixed(14).seed
    long = seed.stream("a", 1, count=5000)
    assert seed.stream("a", 1, count=77) == long[:77]
    others = [seed.stream("a", 2, count=77), seed.stream("b", 1, count=77), seed.stream("a", 1, 0, count=77)]
    assert len({long[:77], *others}) == 4
    counts = np.bincount(np.frombuffer(seed.stream("c", count=200_000), dtype=np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > ALPHA
