"""Contents of a checkpoint: no gradient without noise, no secret seed, and the versions that wrote it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adamas
from adamas._storage.archive import read_archive, write_archive
from adamas.accounting.journal import Journal
from adamas.privatize import privatize
from tests.support.small_runs import finish, make_run
from tests.support.stopped_runs import stopped


def test_a_checkpoint_holds_nothing_without_noise(tmp_path, monkeypatch):
    """No saved tensor is a multiple of a sum before noise."""
    file = tmp_path / "run.safetensors"
    clean = []

    def spy(*arguments, **options):
        silent = options | {"noise_multiplier": 0.0, "charge": lambda _: (), "raw": None}
        engines = list(arguments[0])
        clean.extend(privatize(engines, *arguments[1:], **silent).mean.values())
        return privatize(engines, *arguments[1:], **options)

    monkeypatch.setattr("adamas.run.loop.privatize", spy)
    run = make_run(raw=True, checkpoint=file, checkpoint_every=1, engine="loop")
    finish(run)
    content = read_archive(file, "checkpoint", 2)
    found = tensors_in(content)
    assert len(found) > 8
    assert len(clean) == 6 * 4

    def like(x, y):
        if x.shape != y.shape or x.numel() < 4:
            return False
        x, y = x.double().flatten(), y.double().flatten()
        return abs(float(x @ y)) > 0.9999 * float(x.norm() * y.norm()) > 0

    assert any(like(x, 3 * x) for x in found)
    assert not any(like(x, g) for x in found for g in clean)
    # raw=True takes moments of gradients without noise, and keeps them in memory only.
    assert "raw" not in str(content["state"].keys())


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for item in inner for tensor in tensors_in(item)]


def test_a_secret_seed_is_in_no_file(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, checkpoint=file, checkpoint_every=4)
    stopped(run, 5)
    secret = run.noise.seed._secret
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert secret not in data
        assert secret.hex().encode() not in data
        assert str(int.from_bytes(secret, "big")).encode() not in data
    assert Journal(file).path.exists()


def test_a_checkpoint_names_the_versions_that_wrote_it(saved_run):
    versions = read_archive(saved_run, "checkpoint", 2)["versions"]
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions["adamas"] == adamas.__version__
    assert versions["threads"] == str(torch.get_num_threads())  # the last bits of sums depend on it
    assert versions["compiled"] in ("True", "False")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9) | st.just("$tensor"), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_data_survives_writing_and_reading(tmp_path_factory, value):
    file = tmp_path_factory.mktemp("archive") / "file"
    write_archive(file, "test", 1, {"value": value})
    assert read_archive(file, "test", 1) == {"value": value}


def test_a_value_that_cannot_be_stored_is_refused_with_its_place(tmp_path):
    with pytest.raises(TypeError, match=r"function at content\['a'\]\[1\]"):
        write_archive(tmp_path / "file", "test", 1, {"a": [0, lambda: None]})
    assert list(tmp_path.iterdir()) == []
