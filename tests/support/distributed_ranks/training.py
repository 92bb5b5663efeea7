"""Trains on both ranks, and records what each rank loads, draws and releases."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import adamas
from adamas import rules
from adamas.callbacks import EarlyStopping, WandB
from adamas.noise import GaussianNoise
from tests.support.distributed_ranks.pool import Failure
from tests.support.distributed_ranks.runs import N, loss, make_data, make_run, outcome, values


def train(rank, **settings):
    return outcome(make_run(distributed=True, **settings))


def train_in_a_group(rank):
    """Trains in a group of both ranks, and in a group that rank 1 does not belong to."""
    both = outcome(make_run(distributed=dist.new_group([0, 1])))
    alone = dist.new_group([0])
    try:
        return both, outcome(make_run(distributed=alone))
    except TypeError as error:
        return both, Failure(error)


class Recording(TensorDataset):
    """Records which examples are loaded."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.loaded = []

    def __getitem__(self, index):
        self.loaded.append(int(index))
        return super().__getitem__(index)


def examples_seen(rank, **settings):
    """Returns what each step loaded and drew, the progress, words of the seed, and the settings."""
    data, seen, drawn = Recording(*make_data().tensors), [], []

    def recording_loss(model, batch):
        drawn.append(float(torch.rand(())))
        return loss(model, batch)

    run = make_run(distributed=True, data=data, loss=recording_loss, engine="bookkeeping", **settings)
    for batch in run.batches():
        data.loaded.clear()
        drawn.clear()
        run.privatize(batch)
        seen.append((list(data.loaded), list(drawn)))
    return seen, run.progress, run.noise.seed.words("test", count=4).tolist(), run.state_dict()["settings"]


def noise_only(rank, coordinates, noise_multiplier):
    """Returns the release of a model whose gradients are 0, with a secret seed."""
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


def watched(rank):
    """Stops a run by a score that differs between ranks; returns the logged steps, the end, the scores."""
    logged = []

    def score(model):
        return float(rank) * len(logged)  # 0 on rank 0; rising on rank 1, which alone would go on

    class Recording:
        def log(self, metrics, step):
            logged.append(step)

    stopping = EarlyStopping(score, patience=2, every=1)
    run = make_run(distributed=True, callbacks=[WandB(Recording()), stopping])
    for _ in run:
        pass
    return logged, run.steps_done, stopping.scores


def used_keys(rank, folder):
    """Saves a run, lets it go on, resumes the file with another rate, and returns the noise keys used."""
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
