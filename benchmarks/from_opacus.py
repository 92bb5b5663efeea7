"""Takes the processor time of one loop's steps with Opacus and with `adamas.integrations.opacus`.

    OMP_NUM_THREADS=1 python benchmarks/from_opacus.py

Each way runs in turn, in several rounds, and the fastest round counts. Batches are Poisson samples of 64 of
640 images of 28 x 28, with noise. "run" is the loop over `adamas.make_private`, which has no door.
"""

import time
import warnings

import opacus
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import adamas
from adamas.integrations.opacus import PrivacyEngine

N, BATCH_SIZE, ROUNDS = 640, 64, 9


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def looped(engine, model, data, mode):
    optimizer = torch.optim.Adam(model.parameters())
    module, optimizer, *criteria, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=BATCH_SIZE),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    (criterion,) = criteria or [nn.CrossEntropyLoss()]

    def epoch():
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()

    return epoch


def plain(model, data):
    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    run = adamas.make_private(
        model,
        torch.optim.Adam(model.parameters()),
        data,
        loss,
        batch_size=BATCH_SIZE,
        epochs=2 * ROUNDS,
        noise_multiplier=1.0,
        delta=1e-5,
        progress=False,
    )
    steps = iter(run)

    def epoch():
        for _ in range(N // BATCH_SIZE):
            next(steps)

    return epoch


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 1, 28, 28), torch.randint(0, 10, (N,)))
    for make in (mlp, cnn):
        ways = {
            "Opacus, hooks": looped(opacus.PrivacyEngine(), make(), data, "hooks"),
            "Opacus, ghost": looped(opacus.PrivacyEngine(), make(), data, "ghost"),
            "adamas.integrations.opacus": looped(PrivacyEngine(), make(), data, "hooks"),
            "run": plain(make(), data),
        }
        best = dict.fromkeys(ways, float("inf"))
        for round_ in range(ROUNDS):
            for name, epoch in ways.items():
                start = time.process_time()
                epoch()
                if round_:  # the first one compiles and probes
                    best[name] = min(best[name], time.process_time() - start)
        for name, seconds in best.items():
            print(f"{make.__name__}  {name:28} {1000 * seconds / (N // BATCH_SIZE):7.1f} ms per step")


if __name__ == "__main__":
    main()
