"""Training on both ranks, and what each rank loads, draws and releases."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import adamas
from adamas import rules
from adamas.noise import GaussianNoise
from tests.support.distributed_ranks.pool import Failure
from tests.support.distributed_ranks.runs import N, loss, make_data, make_run, outcome, values


def train(rank, **settings):
    return outcome(make_run(distributed=True, **settings))


def train_in_a_group(rank):
    """A group of both ranks, and a group of rank 0 alone, for which rank 1 is no member."""
    both = outcome(make_run(distributed=dist.new_group([0, 1])))
    alone = dist.new_group([0])
    try:
        return both, outcome(make_run(distributed=alone))
    except TypeError as error:
        return both, Failure(error)


class Noting(TensorDataset):
    """Notes which examples are loaded."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.loaded = []

    def __getitem__(self, index):
        self.loaded.append(int(index))
        return super().__getitem__(index)


def examples_seen(rank, **settings):
    """What this rank loaded and its model drew at each step, its progress, its seed's name, the settings."""
    data, seen, drawn = Noting(*make_data().tensors), [], []

    def noting_loss(model, batch):
        drawn.append(float(torch.rand(())))
        return loss(model, batch)

    run = make_run(distributed=True, data=data, loss=noting_loss, engine="bookkeeping", **settings)
    for batch in run.batches():
        data.loaded.clear()
        drawn.clear()
        run.privatize(batch)
        seen.append((list(data.loaded), list(drawn)))
    return seen, run.progress, run.noise.seed.words("test", count=4).tolist(), run.state_dict()["settings"]


def noise_only(rank, coordinates, noise_multiplier):
    """The release of a model whose gradients are 0, with a secret seed."""
    model = nn.Linear(coordinates, 1, bias=False)
    data = TensorDataset(torch.zeros(N, coordinates))

    def flat_loss(model, batch):
        return model(batch[0]).squeeze(1)

    run = adamas.make_private(
        *(model_with_equal_values(model), rules.SGD(model.parameters(), lr=0.1), data, flat_loss),
        **{"batch_size": 10, "steps": 1, "noise_multiplier": noise_multiplier, "delta": 1e-3},
        distributed=True,
    )
    (step,) = run
    (noise,) = step.release.mean.values()
    return 10 * noise.numpy().ravel()


def model_with_equal_values(model):
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    return model


def used_keys(rank, folder):
    """Which keys of the noise a run uses that is saved, goes on, and is continued with another rate."""
    used = []
    original = GaussianNoise.add_normal_

    def seen(self, out, std=1.0, key=(), **options):
        used.append([self.draws, *key, std, out.double().numpy().tobytes().hex()])
        return original(self, out, std, key, **options)

    GaussianNoise.add_normal_ = seen
    try:
        run = make_run(distributed=True)
        run.save(Path(folder) / "run.safetensors")
        for step in run:
            if step.number == 3:
                break
        other = adamas.load(Path(folder) / "run.safetensors", make_run(distributed=True))
        other.rule.param_groups[0]["lr"] *= 2
        for _ in other:
            pass
        return used, [repr(entry) for entry in other.ledger.entries]
    finally:
        GaussianNoise.add_normal_ = original


def absolute(rank):
    run = make_run(distributed=True)
    return values(run.privatize(next(run.batches()), absolute=True).mean)
