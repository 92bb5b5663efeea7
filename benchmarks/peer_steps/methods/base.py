"""The step of plain PyTorch, and the parts of it that a method overrides."""

import os
import sys

import torch
from torch import nn


class Unsupported(Exception):
    """The method cannot run this workload, or its library is missing."""


class Method:
    """One way to make a training step. The base class is plain PyTorch.

    A subclass wraps model and optimizer in `wrap`, and overrides `forward`, `backward` and `update` where they differ.
    """

    def __init__(self, batch, clip, sigma, lr=1e-3):
        self.batch, self.clip, self.sigma, self.lr = batch, clip, sigma, lr

    def adam(self, **options):
        return torch.optim.Adam([p for _, p in self.trainable], lr=self.lr, **options)

    def setup(self, model):
        self.model, self.loss = model, nn.CrossEntropyLoss()
        self.trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.wrap()

    def wrap(self):
        self.opt = self.adam()

    def forward(self, x, y):
        self.opt.zero_grad()
        return self.loss(self.model(x), y)

    def backward(self, loss):
        loss.backward()

    def update(self):
        self.opt.step()

    def step(self, x, y):
        self.backward(self.forward(x, y))
        self.update()

    def grads(self):
        """Returns the gradients that the optimizer saw, the mean over the batch, by parameter name."""
        return {n: p.grad for n, p in self.trainable}

    def regions(self):
        """Returns (object, attribute, label) of each call that `--profile` times separately."""
        return [(self.opt, "step", "adam")]


def use_source_tree(variable):
    """Puts the source tree that an environment variable names on the import path."""
    if variable not in os.environ:
        raise Unsupported(f"set {variable} to the library's source tree")
    sys.path.insert(0, os.environ[variable])
