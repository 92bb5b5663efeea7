"""Activations of a frozen stage are computed once, and equal those that each step would compute."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from adamas.experiment import training as experiment
from adamas.experiment.activations import on_activations
from adamas.models import Staged, linear, minilm
from tests.support.frozen_stages import SIZES, task


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "activations"


@pytest.fixture
def calls(monkeypatch):
    """Counts the batches that go through a frozen stage."""
    seen = []
    forward = Staged.__init__

    def counting(self, frozen, trained):
        forward(self, frozen, trained)
        frozen.register_forward_hook(lambda *_: seen.append(1))

    monkeypatch.setattr(Staged, "__init__", counting)
    return seen


def test_the_trained_part_gets_the_activations_of_the_whole_model():
    model, data = task()
    trained, kept = on_activations(model, data)
    assert trained is model.trained
    for name in ("train", "test"):
        ids, labels = getattr(data, name).tensors
        hidden, present, same = getattr(kept, name).tensors
        assert torch.equal(labels, same)
        assert torch.equal(present, ids != 0)
        assert torch.equal(hidden, model.frozen(ids)[0].half())
        # Half precision has 11 bits: hidden values below 8 are off by less than 8 / 2^11.
        torch.testing.assert_close(trained(hidden, present), model(ids), atol=0.02, rtol=0)


def test_activations_are_computed_once(calls, cache):
    model, data = task()
    on_activations(model, data)
    batches = len(calls)
    assert batches == 3 + 1  # 150 and 20 examples, 64 at a time
    files = {path: path.stat().st_mtime_ns for path in cache.glob("*.safetensors")}
    assert len(files) == 2
    on_activations(*task())
    assert len(calls) == batches + 2  # three examples of each set, to detect changed code
    assert {path: path.stat().st_mtime_ns for path in cache.glob("*.safetensors")} == files


@pytest.mark.parametrize("other", [{"seed": 1}, {"examples": 151}])
def test_other_weights_or_examples_have_their_own_files(calls, cache, other):
    on_activations(*task())
    batches = len(calls)
    on_activations(*task(**other))
    assert len(calls) == 2 * batches
    assert len(list(cache.glob("*.safetensors"))) == 4


class Power(nn.Module):
    """A stage without weights, with an option that is a plain attribute."""

    def __init__(self, power):
        super().__init__()
        self.power = power

    def forward(self, x):
        return (x.float() ** self.power,)


def test_another_option_of_a_module_has_its_own_files():
    _, data = task()
    (ids, _) = data.test.tensors
    for power in (1, 2):
        _, kept = on_activations(Staged(Power(power), nn.Linear(9, 3)), data)
        assert torch.equal(kept.test.tensors[0], (ids.float() ** power).half())


def test_another_number_of_attention_heads_has_its_own_files():
    _, data = task()
    first = []
    for heads in (4, 2):
        torch.manual_seed(0)
        model = minilm(None, 3, sizes=dataclasses.replace(SIZES, heads=heads))
        with torch.no_grad():  # so that attention matters
            for p in model.frozen.parameters():
                p *= 10
        _, kept = on_activations(model, data)
        first.append(kept.test.tensors[0])
        torch.testing.assert_close(
            first[-1].float(), model.frozen(data.test.tensors[0])[0], atol=0.01, rtol=0.01
        )
    assert not torch.allclose(*first, atol=0.05)


def test_changed_code_is_detected(monkeypatch):
    _, data = task()
    on_activations(Staged(Power(1), nn.Linear(9, 3)), data)
    monkeypatch.setattr(Power, "forward", lambda self, x: (x.float() + 1,))
    _, kept = on_activations(Staged(Power(1), nn.Linear(9, 3)), data)
    assert torch.equal(kept.train.tensors[0], (data.train.tensors[0].float() + 1).half())


class Many(nn.Module):
    def forward(self, x):
        return tuple(x.float() * i for i in range(12))


def test_many_outputs_stay_in_order():
    _, data = task()
    _, kept = on_activations(Staged(Many(), nn.Linear(9, 3)), data)
    *outputs, _ = kept.test.tensors
    assert len(outputs) == 12
    assert all(torch.equal(values, data.test.tensors[0].half() * i) for i, values in enumerate(outputs))


def test_activations_beyond_half_precision_are_refused():
    model = Staged(Power(5), nn.Linear(9, 3))
    with pytest.raises(ValueError, match=r"below 65504.*Scale them"):
        on_activations(model, task()[1])


def test_any_trained_part_accepts_the_activations():
    _, data = task()
    model, kept = on_activations(Staged(Power(1), nn.Linear(9, 3)), data)
    assert experiment.cross_entropy(model, kept.train[:5]).shape == (5,)
    assert 0 <= experiment.accuracy(model, kept.test) <= 1


def test_a_damaged_file_is_named_with_the_remedy(cache):
    on_activations(*task())
    for path in cache.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(RuntimeError, match=r"safetensors is damaged.*Delete it"):
        on_activations(*task())


def test_a_model_without_stages_is_returned_unchanged(cache):
    _, data = task()
    model = linear((9,), 3)
    assert on_activations(model, data) == (model, data)
    assert not cache.exists()


SECOND = """
import sys
sys.path.insert(0, sys.argv[1])
from adamas.experiment.activations import on_activations
from tests.support.frozen_stages import task
on_activations(*task())
"""


@pytest.mark.subprocess
def test_two_processes_at_once_share_their_files(cache):
    folder = str(Path(__file__).parents[2])
    processes = [subprocess.Popen([sys.executable, "-c", SECOND, folder]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert len(list(cache.glob("*.safetensors"))) == 2
    assert not list(cache.glob(".fetch-*"))


def test_the_frozen_stage_does_not_change():
    model, data = task()
    before = {name: value.clone() for name, value in model.frozen.state_dict().items()}
    on_activations(model, data)
    assert all(torch.equal(value, before[name]) for name, value in model.frozen.state_dict().items())
    assert not any(p.requires_grad for p in model.frozen.parameters())
