"""Every federated algorithm in NumPy, as its paper states it, on a linear regression of three clients.

Without noise and clipping, and with all examples in each step, an algorithm of `adamas.federated` must reach
the same weights as its function here. `REFERENCES` has the function and the options of each algorithm.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamas.federated import Client

CLIENTS, ROUNDS, STEPS, FEATURES = 3, 4, 3, 5


class Regression(nn.Module):
    """A linear model with one vector of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, FEATURES, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(1)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x) - y) ** 2 / 2


def data(client: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(client)
    x = generator.normal(size=(6 + client, FEATURES))
    return x, x @ generator.normal(size=FEATURES) + 0.1 * generator.normal(size=len(x))


def gradient(client: int, w: np.ndarray) -> np.ndarray:
    x, y = data(client)
    return x.T @ (x @ w - y) / len(x)


def make_client(number: int, **options) -> Client:
    """Makes a client. By default each step has all examples, without noise and clipping."""
    x, y = data(number)
    settings = {"batch_size": len(x), "noise_multiplier": 0.0, "clip_norm": math.inf, "delta": 1e-5}
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return Client(Regression(), dataset, loss, **settings | options)


START = np.linspace(-1, 1, FEATURES)


def fedavg(lr, weight_decay):
    theta = START.copy()
    for _ in range(ROUNDS):
        ends = []
        for i in range(CLIENTS):
            w = theta.copy()
            for _ in range(STEPS):
                w = w - lr * (gradient(i, w) + weight_decay * w)
            ends.append(w)
        theta = theta + np.mean([w - theta for w in ends], axis=0)
    return theta


def fedavg_ls(lr, weight_decay, smoothing):
    laplacian = 2 * np.eye(FEATURES) - np.roll(np.eye(FEATURES), 1, 0) - np.roll(np.eye(FEATURES), -1, 0)
    inverse = np.linalg.inv(np.eye(FEATURES) + smoothing * laplacian)
    theta = START.copy()
    for _ in range(ROUNDS):
        ends = []
        for i in range(CLIENTS):
            w = theta.copy()
            for _ in range(STEPS):
                w = w - lr * (inverse @ gradient(i, w) + weight_decay * w)
            ends.append(w)
        theta = np.mean(ends, axis=0)
    return theta


def scaffold(lr):
    theta, c, own = START.copy(), np.zeros(FEATURES), [np.zeros(FEATURES) for _ in range(CLIENTS)]
    for _ in range(ROUNDS):
        ends, changes = [], []
        for i in range(CLIENTS):
            w = theta.copy()
            for _ in range(STEPS):
                w = w - lr * (gradient(i, w) - own[i] + c)
            new = own[i] - c + (theta - w) / (STEPS * lr)
            changes.append(new - own[i])
            own[i] = new
            ends.append(w)
        c = c + sum(changes) / CLIENTS
        theta = np.mean(ends, axis=0)
    return theta


def fedsam(lr, weight_decay, radius):
    theta = START.copy()
    for _ in range(ROUNDS):
        ends = []
        for i in range(CLIENTS):
            w = theta.copy()
            for _ in range(STEPS):
                g = gradient(i, w)
                w = w - lr * (gradient(i, w + radius * g / np.linalg.norm(g)) + weight_decay * w)
            ends.append(w)
        theta = np.mean(ends, axis=0)
    return theta


def local_adamw(lr, betas, eps, weight_decay):
    theta = START.copy()
    for _ in range(ROUNDS):
        ends = []
        for i in range(CLIENTS):
            w, m, v = theta.copy(), 0.0, 0.0
            for k in range(1, STEPS + 1):
                g = gradient(i, w)
                m = betas[0] * m + (1 - betas[0]) * g
                v = betas[1] * v + (1 - betas[1]) * g**2
                step = m / (1 - betas[0] ** k) / (np.sqrt(v / (1 - betas[1] ** k)) + eps)
                w = w - lr * (step + weight_decay * w)
            ends.append(w)
        theta = np.mean(ends, axis=0)
    return theta


def fedopt(lr, weight_decay, server_lr, server_betas, tau, second_moment):
    b1, b2 = server_betas
    theta, momentum, squares = START.copy(), 0.0, np.full(FEATURES, tau**2)
    for _ in range(ROUNDS):
        ends = []
        for i in range(CLIENTS):
            w = theta.copy()
            for _ in range(STEPS):
                w = w - lr * (gradient(i, w) + weight_decay * w)
            ends.append(w)
        delta = np.mean(ends, axis=0) - theta
        momentum = b1 * momentum + (1 - b1) * delta
        squares = {
            "adam": b2 * squares + (1 - b2) * delta**2,
            "yogi": squares - (1 - b2) * delta**2 * np.sign(squares - delta**2),
            "adagrad": squares + delta**2,
        }[second_moment]
        theta = theta + server_lr * momentum / (np.sqrt(squares) + tau)
    return theta


def fedlada(lr, betas, eps, alignment):
    b1, b2 = betas
    theta, shared, direction = START.copy(), np.zeros(FEATURES), np.zeros(FEATURES)
    for _ in range(ROUNDS):
        ends, seconds = [], []
        for i in range(CLIENTS):
            w, m, v = theta.copy(), 0.0, shared.copy()
            for _ in range(STEPS):
                g = gradient(i, w)
                m = b1 * m + (1 - b1) * g
                v = b2 * v + (1 - b2) * g**2
                w = w - lr * (1 - alignment) * m / (np.sqrt(v) + eps) - lr * alignment * direction
            ends.append(w)
            seconds.append(v)
        direction = -np.mean([w - theta for w in ends], axis=0) / (STEPS * lr)
        theta, shared = np.mean(ends, axis=0), np.mean(seconds, axis=0)
    return theta


def fafed(lr, momentum, beta, rho):
    theta, m_bar, v_bar = START.copy(), np.zeros(FEATURES), np.zeros(FEATURES)
    for _ in range(ROUNDS):
        ends, ms, vs = [], [], []
        for i in range(CLIENTS):
            w, m, v, before = theta.copy(), m_bar.copy(), v_bar.copy(), None
            for _ in range(STEPS):
                g = gradient(i, w)
                if before is None:
                    m = momentum * g + (1 - momentum) * m
                else:
                    m = g + (1 - momentum) * (m - gradient(i, before))
                v = beta * v + (1 - beta) * g**2
                before, w = w, w - lr * m / (np.sqrt(v_bar) + rho)
            ends.append(w)
            ms.append(m)
            vs.append(v)
        theta, m_bar, v_bar = (np.mean(parts, axis=0) for parts in (ends, ms, vs))
    return theta


def fedadamw(lr, betas, floor, weight_decay, alignment, aggregation, blocks):
    """Subtracts no noise variance, because there is no noise."""
    b1, b2 = betas
    theta, shared, direction = START.copy(), np.zeros(FEATURES), np.zeros(FEATURES)
    for t in range(ROUNDS):
        rate = lr * (1 + math.cos(math.pi * t / ROUNDS)) / 2
        ends, seconds = [], []
        for i in range(CLIENTS):
            w, m = theta.copy(), 0.0
            v = shared.copy() if aggregation != "local" else np.zeros(FEATURES)
            before = t * STEPS if aggregation != "local" else 0
            for k in range(1, STEPS + 1):
                g = gradient(i, w)
                m = b1 * m + (1 - b1) * g
                v = b2 * v + (1 - b2) * g**2
                root = np.sqrt(np.maximum(v / (1 - b2 ** (before + k)), floor))
                w = w - rate * (m / (1 - b1**k) / root + weight_decay * w + alignment * direction)
            ends.append(w)
            seconds.append(v)
        direction = -np.mean([w - theta for w in ends], axis=0) / (STEPS * rate)
        theta = np.mean(ends, axis=0)
        shared = np.mean(seconds, axis=0)
        if aggregation == "blocks":
            for block in np.unique(blocks):
                shared[blocks == block] = shared[blocks == block].mean()
    return theta


BETAS = (0.8, 0.95)


REFERENCES = {
    "dp-fedavg": (fedavg, {"lr": 0.05, "weight_decay": 0.1}),
    "dp-fedavg-ls": (fedavg_ls, {"lr": 0.05, "weight_decay": 0.1, "smoothing": 0.7}),
    "dp-scaffold": (scaffold, {"lr": 0.05}),
    "dp-fedsam": (fedsam, {"lr": 0.05, "weight_decay": 0.1, "radius": 0.2}),
    "dp-localadamw": (local_adamw, {"lr": 0.05, "betas": BETAS, "eps": 1e-3, "weight_decay": 0.1}),
    "dp-fedopt": (
        fedopt,
        {"lr": 0.05, "weight_decay": 0.1, "server_lr": 0.2, "server_betas": BETAS, "tau": 0.01},
    ),
    "dp-fedlada": (fedlada, {"lr": 0.05, "betas": BETAS, "eps": 1e-3, "alignment": 0.6}),
    "dp-fafed": (fafed, {"lr": 0.01, "momentum": 0.3, "beta": 0.9, "rho": 0.2}),
    "dp-fedadamw": (
        fedadamw,
        {"lr": 0.05, "betas": BETAS, "floor": 1e-3, "weight_decay": 0.1, "alignment": 0.4},
    ),
}
