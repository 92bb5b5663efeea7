"""Mixtures of experts."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.architectures.plain.parts import head, param, plain, sequence
from tests.support.architectures.registry import register


def token_mlp(experts: int = 4) -> dict[str, Any]:
    return dict(
        gate=nn.Linear(8, experts),
        experts=nn.ModuleList(
            nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8)) for _ in range(experts)
        ),
        head=head(),
    )


def soft_mixture(m: Any, x: Tensor) -> Tensor:
    """Runs all experts on all tokens, and weights them by the gates."""
    gates = m.gate(x).softmax(-1)
    mixed = torch.stack([expert(x) for expert in m.experts], -1)
    return m.head((x + (mixed * gates.unsqueeze(-2)).sum(-1)).mean(1))


def top_mixture(m: Any, x: Tensor) -> Tensor:
    """Runs all experts on all tokens. Only the best two have weight."""
    gates, best = m.gate(x).topk(2, -1)
    weights = (F.one_hot(best, len(m.experts)).to(x.dtype) * gates.softmax(-1).unsqueeze(-1)).sum(-2)
    mixed = torch.stack([expert(x) for expert in m.experts], -1)
    return m.head((x + (mixed * weights.unsqueeze(-2)).sum(-1)).mean(1))


def routed_mixture(m: Any, x: Tensor) -> Tensor:
    """Runs each expert on the tokens of the batch that chose it, and adds the results at their places."""
    tokens = x.reshape(-1, x.shape[-1])
    gates, best = m.gate(tokens).topk(2, -1)
    gates = gates.softmax(-1)
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(m.experts):
        rows, places = torch.where(best == i)
        out = out.index_add(0, rows, expert(tokens[rows]) * gates[rows, places].unsqueeze(1))
    return m.head((tokens + out).view_as(x).mean(1))


def masked_mixture(m: Any, x: Tensor) -> Tensor:
    """Does the same with boolean masks and assignment."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(m.experts):
        mask = best == i
        if mask.any():
            out[mask] = gates[mask].unsqueeze(1) * expert(tokens[mask])
    return m.head((tokens + out).view_as(x).mean(1))


def stacked_mixture(m: Any, x: Tensor) -> Tensor:
    """Keeps the experts' weights in one tensor, from which each token takes its own."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    h = torch.einsum("td,tdk->tk", tokens, m.wide[best])
    out = torch.einsum("tk,tkd->td", F.gelu(h), m.narrow[best])
    return m.head((tokens + gates.unsqueeze(1) * out).view_as(x).mean(1))


def stacked_parts() -> dict[str, Any]:
    return dict(gate=nn.Linear(8, 4), wide=param(4, 8, 10), narrow=param(4, 10, 8), head=head())


def register_experts() -> None:
    """Adds mixtures of experts."""
    for name, forward in [
        ("soft", soft_mixture),
        ("best two with weights", top_mixture),
        ("rows of each expert", routed_mixture),
    ]:
        register(f"mixture of experts, {name}", plain(forward, token_mlp, sequence))
    register(
        "mixture of experts, masks of each expert",
        plain(masked_mixture, token_mlp, sequence),
        expected="asks whether any token of the batch chose an expert",
    )
    register("mixture of experts, weights of each token", plain(stacked_mixture, stacked_parts, sequence))
