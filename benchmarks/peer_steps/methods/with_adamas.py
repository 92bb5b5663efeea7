"""The whole private step of adamas: engine, clipping, noise and the rule `adam`."""

from private_step import losses

from adamas import rules
from adamas.engines import ENGINES
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from peer_steps.geometry import random_geometry
from peer_steps.methods.base import Method


class Adamas(Method):
    """Clips to a ball."""

    def wrap(self):
        self.make, self.noise = ENGINES["bookkeeping"], GaussianNoise(0)
        self.opt = rules.Adam([p for _, p in self.trainable], lr=self.lr)
        self.geometry = self.opt.geometry

    def forward(self, x, y):
        self.release = None
        self.opt.zero_grad()
        return self.make(self.model, losses, (x, y))

    def backward(self, engine):
        self.release = privatize(
            [(engine, 0)],
            self.geometry().scaled(self.clip),
            noise_multiplier=self.sigma,
            expected_batch_size=self.batch,
            noise=self.noise,
            charge=lambda _: (),
        )

    def update(self):
        self.release.write_to(self.opt)
        self.opt.step()

    def regions(self):
        return [(self.noise, "normal_", "noise"), (self.opt, "step", "adam")]


class AdamasCoordinates(Adamas):
    """Clips with a random center and scale per coordinate."""

    def wrap(self):
        super().wrap()
        fixed = random_geometry([p for _, p in self.trainable])
        self.geometry = lambda: fixed
