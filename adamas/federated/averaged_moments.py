"""The scaffold of algorithms whose clients start a round from the server's averaged moments."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adamas._numerics.sums import accumulation_dtype
from adamas.federated.algorithm import Algorithm, Round
from adamas.federated.arrays import Records, differences, moments_like
from adamas.federated.client import Client
from adamas.rules.base import Rule

_KEYS = {"momentum": "m", "second-moments": "v"}  # record -> key in the state of a rule


@dataclass(frozen=True, kw_only=True)
class AveragedMoments(Algorithm):
    """An algorithm that averages moments of the clients, coordinate by coordinate.

    Its `averages` names the moments: "momentum", "second-moments". They start at 0. A subclass makes the
    rule of the local steps, which keeps them in its state as `m` and `v`.
    """

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        return state | {name: moments_like(state["parameters"]) for name in self.averages}

    @abstractmethod
    def rule(self, client: Client, received: Records, round: Round) -> Rule:
        """Makes the rule of a client's local steps."""

    def make_steps(self, client: Client, rule: Rule, steps: int) -> None:
        """Makes the local steps, with one release each; override for more."""
        client.train(rule, steps)

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        rule = self.rule(client, received, round)
        self.make_steps(client, rule, round.local_steps)
        update = {"increment": differences(client.parameters, received["parameters"])}
        for name in self.averages:
            update[name] = {own: rule.state[p][_KEYS[name]] for own, p in client.parameters.items()}
        return update


def start_moments(
    rule: Rule,
    *,
    first: Mapping[Tensor, Tensor] | None = None,
    second: Mapping[Tensor, Tensor] | None = None,
) -> None:
    """Puts copies of given moments into the state of a rule, as `m` and `v`.

    Args:
        rule: A rule that has made no step.
        first: Parameter -> first moment; None for 0.
        second: Parameter -> second moment; None for 0.
    """
    for p in rule.trainable():
        dtype = accumulation_dtype(p.dtype)
        rule.state[p] = {
            key: torch.zeros_like(p, dtype=dtype) if given is None else given[p].to(dtype, copy=True)
            for key, given in (("m", first), ("v", second))
        }
