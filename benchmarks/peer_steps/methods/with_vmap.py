"""DP-SGD's clipping by hand, with the per-example gradients of `torch.func`."""

import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer_steps.methods.base import Method


class Vmap(Method):
    """`vmap(grad)`, clipping to a ball, noise and torch's Adam. A clip of None means the median norm."""

    def wrap(self):
        self.opt = self.adam()
        frozen = {n: p.detach() for n, p in self.model.named_parameters() if not p.requires_grad}

        def loss_of_example(params, x, y):
            out = functional_call(self.model, {**frozen, **params}, (x[None],))
            return F.cross_entropy(out, y[None])

        self.per_example = vmap(grad(loss_of_example), in_dims=(None, 0, 0))

    def forward(self, x, y):
        return x, y

    def backward(self, batch):
        with sdpa_kernel(SDPBackend.MATH):  # the fused CPU attention kernel has no batching rule
            self.gradients = self.per_example({n: p.detach() for n, p in self.trainable}, *batch)

    def clip_sum(self):
        self.norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.gradients.values()]).norm(dim=0)
        if self.clip is None:
            self.clip = float(self.norms.median())
        factors = (self.clip / (self.norms + 1e-6)).clamp(max=1.0)
        for n, p in self.trainable:
            p.grad = torch.tensordot(factors, self.gradients[n], 1)
        self.gradients = None

    def noise(self):
        for _, p in self.trainable:
            if self.sigma:
                p.grad.add_(torch.randn_like(p), alpha=self.sigma * self.clip)
            p.grad.div_(self.batch)

    def update(self):
        self.clip_sum()
        self.noise()
        self.opt.step()

    def regions(self):
        return [(self, "clip_sum", "clip"), (self, "noise", "noise"), (self.opt, "step", "adam")]
