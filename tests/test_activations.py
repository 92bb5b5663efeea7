"""What a frozen stage makes of the examples is computed once, and is what it would be at each step."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from adamas.activations import on_activations
from adamas.data import Data
from adamas.models import BertSizes, Staged, linear, minilm

SIZES = BertSizes(words=50, positions=16, width=24, layers=3, heads=4, inner=40)


def task(seed=0, examples=150):
    torch.manual_seed(seed)
    model = minilm(None, 3, sizes=SIZES)

    def split(n):
        ids = torch.randint(1, 50, (n, 9))
        return TensorDataset(
            torch.where(torch.arange(9) < 3 + torch.arange(n)[:, None] % 7, ids, 0), ids[:, 0] % 3
        )

    return model, Data("texts", split(examples), split(20), (9,), 3)


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


def test_the_trained_part_sees_what_it_would_see_in_the_whole_model():
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


def test_they_are_computed_once(calls, cache):
    model, data = task()
    on_activations(model, data)
    batches = len(calls)
    assert batches == 3 + 1  # 150 and 20 examples, 64 at a time
    files = {path: path.stat().st_mtime_ns for path in cache.glob("*.safetensors")}
    assert len(files) == 2
    on_activations(*task())
    assert len(calls) == batches
    assert {path: path.stat().st_mtime_ns for path in cache.glob("*.safetensors")} == files


@pytest.mark.parametrize("other", [{"seed": 1}, {"examples": 151}])
def test_other_weights_or_examples_have_their_own(calls, cache, other):
    on_activations(*task())
    batches = len(calls)
    on_activations(*task(**other))
    assert len(calls) > batches
    assert len(list(cache.glob("*.safetensors"))) >= 3


def test_a_damaged_file_is_named_with_the_remedy(cache):
    on_activations(*task())
    for path in cache.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(RuntimeError, match=r"safetensors is damaged.*Delete it"):
        on_activations(*task())


def test_a_model_without_stages_is_left_alone(cache):
    _, data = task()
    model = linear((9,), 3)
    assert on_activations(model, data) == (model, data)
    assert not cache.exists()


SECOND = """
import sys
sys.path.insert(0, sys.argv[1])
from test_activations import on_activations, task
on_activations(*task())
"""


def test_two_processes_at_once_make_one_file(cache):
    folder = str(Path(__file__).parent)
    processes = [subprocess.Popen([sys.executable, "-c", SECOND, folder]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert len(list(cache.glob("*.safetensors"))) == 2
    assert not list(cache.glob(".fetch-*"))


def test_the_frozen_stage_is_public_and_stays_as_it_is():
    model, data = task()
    before = {name: value.clone() for name, value in model.frozen.state_dict().items()}
    on_activations(model, data)
    assert all(torch.equal(value, before[name]) for name, value in model.frozen.state_dict().items())
    assert not any(p.requires_grad for p in model.frozen.parameters())
    assert isinstance(model.trained, nn.Module)
