"""Checkpoints that are incomplete, damaged or of another run are refused and leave the run unchanged."""

import errno
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import adamas
from adamas._storage import archive as _archive
from adamas._storage.archive import read_archive, write_archive
from tests.support.small_runs import N, finish, make_data, make_model, make_run
from tests.support.stopped_runs import parameters, stopped


def test_a_full_disk_leaves_the_old_checkpoint_intact(tmp_path, monkeypatch):
    file = tmp_path / "run.safetensors"
    run = stopped(make_run(), 2)
    run.save(file)
    before = file.read_bytes()
    stopped(run, 3)
    write = _archive.save_file

    def full(tensors, path, metadata):
        write(tensors, path, metadata)
        Path(path).write_bytes(Path(path).read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_archive, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        run.save(file)
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.safetensors", "run.safetensors.journal"]
    shutil.copytree(tmp_path, tmp_path / "copy")
    resumed = adamas.load(tmp_path / "copy" / file.name, make_run())
    assert torch.equal(finish(resumed), finish(make_run()))
    run.save(file)  # there is space again
    assert torch.equal(finish(run), finish(make_run()))


def test_a_truncated_checkpoint_is_refused(saved_run, tmp_path):
    data = saved_run.read_bytes()
    for length in [0, 1, 8, 100, len(data) // 2, len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(ValueError, match="damaged"):
            adamas.load(tmp_path / "cut", make_run())


def test_a_flipped_bit_is_detected_wherever_it_is(saved_run, tmp_path):
    """Flips 300 random bits and each bit of the header's length; the file is refused or reads the same.

    Only bits without meaning may pass: the spaces that end the header, and the order of its keys.
    """
    data = saved_run.read_bytes()
    intact = read_archive(saved_run, "checkpoint", 2)
    places = [*range(64), *random.Random(0).sample(range(len(data) * 8), 300)]
    refused = 0
    for place in places:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << (place % 8)
        (tmp_path / "flipped").write_bytes(flipped)
        try:
            content = read_archive(tmp_path / "flipped", "checkpoint", 2)
        except ValueError:
            refused += 1
        else:
            assert str(content) == str(intact)
    assert refused > 0.99 * len(places)


def test_a_damaged_checkpoint_leaves_the_run_unchanged(saved_run, tmp_path):
    data = bytearray(saved_run.read_bytes())
    data[-3] ^= 4
    (tmp_path / "flipped").write_bytes(data)
    run = make_run()
    with pytest.raises(ValueError, match="digest"):
        adamas.load(tmp_path / "flipped", run)
    assert torch.equal(finish(run), finish(make_run()))


def test_a_file_that_is_no_checkpoint_of_this_version_is_refused_with_the_reason(tmp_path, saved_run):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        adamas.load(tmp_path / "nothing-here", make_run())
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="to be a checkpoint of adamas"):
        adamas.load(tmp_path / "weights.safetensors", make_run())
    (tmp_path / "text").write_text("hello" * 100)
    with pytest.raises(ValueError, match="damaged"):
        adamas.load(tmp_path / "text", make_run())
    content = read_archive(saved_run, "checkpoint", 2)
    write_archive(tmp_path / "newer", "checkpoint", 3, content)
    with pytest.raises(ValueError, match="newer adamas"):
        adamas.load(tmp_path / "newer", make_run())
    write_archive(tmp_path / "older", "checkpoint", 0, content)
    with pytest.raises(ValueError, match="version of adamas that wrote it"):
        adamas.load(tmp_path / "older", make_run())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: make_run(noise_multiplier=2.0), "noise_multiplier=2.0"),
        (lambda: make_run(steps=9), "steps=9"),
        (lambda: make_run(seed=8), "seed=8"),
        (lambda: make_run(data=make_data(N + 1)), "dataset_size=61"),
        (lambda: make_run(ema=0.9), "ema="),
        (lambda: make_run(nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))), "0.weight of shape"),
        (lambda: make_run(nn.Linear(5, 2)), "only one of them has weight"),
        (lambda: make_run(make_model(dtype=torch.float64), data=make_double()), "torch.float64"),
    ],
)
def test_another_run_or_model_is_refused_and_left_unchanged(saved_run, made, message):
    run = made()
    before = parameters(run)
    with pytest.raises(ValueError, match=message):
        adamas.load(saved_run, run)
    assert torch.equal(parameters(run), before)
    assert run.steps_done == 0
    assert run.checkpoints is None


def make_double():
    x, y = make_data().tensors
    return torch.utils.data.TensorDataset(x.double(), y)


def test_loading_into_a_run_that_has_released_something_is_refused(saved_run):
    run = stopped(make_run(), 1)
    with pytest.raises(RuntimeError, match="released nothing"):
        adamas.load(saved_run, run)
