"""Steps without privacy: two forms of Adam, and a lower bound for a private step."""

import torch

from peer_steps.methods.base import Method


class Plain(Method):
    """Adam as torch makes it by default."""


class PlainFused(Method):
    """Adam in one fused kernel."""

    def wrap(self):
        self.opt = self.adam(fused=True)


class Floor(PlainFused):
    """Adds noise to an unclipped gradient, so a private step with Adam hardly costs less."""

    def noise(self):
        std = self.sigma * self.clip / self.batch
        for _, p in self.trainable:
            p.grad.add_(torch.randn_like(p), alpha=std)

    def update(self):
        self.noise()
        self.opt.step()

    def regions(self):
        return [(self, "noise", "noise"), (self.opt, "step", "adam")]
