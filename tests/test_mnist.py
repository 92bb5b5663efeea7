"""End to end on MNIST: the published accuracy of DP-Adam (DP-MacAdam paper, Table I, sigma = 0.5)."""

import json

import pytest

from adamas import data
from adamas.cli import main

pytestmark = pytest.mark.mnist


def test_mnist_has_its_published_counts():
    mnist = data.load("mnist")
    assert len(mnist.train) == 60_000
    assert len(mnist.test) == 10_000
    assert mnist.train.tensors[1].bincount().tolist() == [
        *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    ]
    assert abs(mnist.train.tensors[0].mean()) < 1e-3
    assert abs(mnist.train.tensors[0].std() - 1) < 1e-3


def test_dp_adam_reaches_the_published_accuracy(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(
            "train --data mnist --model mlp --rule adam --lr 1e-3 --clip-norm 1 --epochs 5 --batch-size 256 "
            f"--noise-multiplier 0.5 --delta 1e-5 --seed 0 --json --out {tmp_path / 'run'}".split()
        )
    assert stop.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epsilon"] == pytest.approx(7.479, abs=5e-4)
    assert result["test_accuracy"] == pytest.approx(0.928, abs=0.01)
