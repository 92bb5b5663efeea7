"""`adamas check` catches state that a forward leaves behind, and parameters that a run cannot protect."""

import pytest
import torch
from torch import nn

from adamas.check import PASS
from tests.support.sabotaged_runs import MINE, REAL, STATE, assert_caught, loss, made, rows_of


def leaking(write, least=21):
    def forward(model, batch):
        if len(batch[0]) >= least:
            with torch.no_grad():
                write(model, batch[0])
        return loss(model, batch)

    return forward


def warmed_up(model, x):
    model.calls = getattr(model, "calls", 0) + 1
    if model.calls > 3:
        model.seen.add_(x.mean(0))


class Remembering(nn.Module):
    """A loss that keeps a running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, model, batch):
        losses = loss(model, batch)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(losses.mean())
        return losses


WRITES = {
    "a buffer": leaking(lambda model, x: model.seen.add_(x.mean(0))),
    "a buffer, by its data": leaking(lambda model, x: model.seen.data.copy_(x[0])),
    "a buffer that is replaced": leaking(lambda model, x: setattr(model, "seen", x[0].clone())),
    "a buffer after a warm-up": leaking(warmed_up, 1),
    "a frozen parameter": leaking(lambda model, x: model.frozen.mul_(1 + x.mean() / 100)),
    "a trainable parameter": leaking(lambda model, x: model.last.bias.add_(x.mean() / 100)),
    "an attribute": leaking(lambda model, x: setattr(model, "kept", x[0].clone())),
    "a number": leaking(lambda model, x: setattr(model, "mean", float(x.mean()))),
    "a list": leaking(lambda model, x: setattr(model, "history", [*getattr(model, "history", []), x[0]])),
    "the loss": Remembering,
}


@pytest.mark.parametrize("engine", ["loop", "bookkeeping"])
@pytest.mark.parametrize("kind", WRITES)
def test_a_forward_that_keeps_state_is_caught(monkeypatch, kind, engine):
    """With the engine loop, which takes each example alone, the run itself never sees a large batch."""

    def make_run():
        write = WRITES[kind]
        return made(write() if isinstance(write, type) else write, engine=engine)

    assert_caught(monkeypatch, make_run, STATE)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


def test_complex_parameters_are_caught(monkeypatch):
    def make_run():
        try:
            return made(model=Complex)
        except (TypeError, ValueError):  # refused: add the parameter afterwards
            run = made()
            run.model.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))
            return run

    assert_caught(monkeypatch, make_run, REAL)


def test_parameters_of_the_loss_are_caught(monkeypatch):
    temperature = nn.Parameter(torch.ones(()))

    def scaled(model, batch):
        return loss(model, batch) * temperature

    def make_run():
        run = made()
        run.loss = scaled
        return run

    assert_caught(monkeypatch, make_run, MINE)
    assert_caught(monkeypatch, lambda: made(scaled, engine="loop"), MINE)
    temperature.requires_grad_(False)
    assert rows_of(monkeypatch, make_run, MINE)[MINE].verdict == PASS
