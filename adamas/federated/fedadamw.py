r"""DP-FedAdamW (Liu et al., 2026): AdamW for clients with few, different and private examples.

.. math::
    m      &\leftarrow \beta_1 m + (1-\beta_1)\tilde g, \quad
    \hat m = m/(1-\beta_1^k)                                                             \qquad (1) \\
    v      &\leftarrow \beta_2 v + (1-\beta_2)\tilde g^2, \quad
    \hat v = v/(1-\beta_2^{tK+k})                                                        \qquad (2) \\
    D      &= \sqrt{\max(\hat v - \Phi, \gamma')}                                        \qquad (3) \\
    \theta &\leftarrow (1 - \eta_t\lambda)\theta - \eta_t(\hat m/D + \gamma\Delta_G)      \qquad (4) \\
    \theta^{t+1}   &= \theta^t + \frac1S\sum_i \Delta\theta_i                            \qquad (5) \\
    \bar v_b^{t+1} &= \frac1A\sum_i \mathrm{mean}_b(v_i)                                 \qquad (6) \\
    \Delta_G^{t+1} &= -\frac{1}{S K \eta_t} \sum_i \Delta\theta_i                        \qquad (7)

(1) to (4) are step k = 1, ..., K of a client in round t; rounds without an update do not count in t of (2).
:math:`\Phi` is the noise variance of a release. m starts at 0 in each round, v at the averages
:math:`\bar v` of its blocks. These are sent with the noise in them: it is subtracted once, in (3) of each
step. (5) to (7) are the server's. Sums run over the A clients that answered; S is the expected number.

J. Liu, Y. Miao, N. Xi and J. Liu, "DP-FedAdamW: An Efficient Optimizer for Differentially Private Federated
Large Models", CVPR 2026, arXiv:2602.19945.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from adamas import _validate
from adamas.federated.algorithm import Algorithm, Round
from adamas.federated.arrays import Arrays, Records, differences, moments_like, zeros_like
from adamas.federated.averaged_moments import start_moments
from adamas.federated.blocks import Blocks
from adamas.federated.client import Client, by_parameter
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State
from adamas.theory import automatic_floor

_AGGREGATIONS = ("blocks", "coordinates", "local")
_COUNTERS = ("split", "code")


@dataclass(frozen=True, kw_only=True)
class FedAdamW(Algorithm):
    """Local AdamW with averaged second moments of blocks, their noise subtracted, aligned with all clients.

    Each part can be switched off: `aggregation="local"`, `bias_correction=False`, `alignment=0`.

    Attributes:
        betas: Decays of the moments.
        eps: tau, added to the root if the noise is not subtracted, or if there is no floor.
        floor: gamma', the least value under the root: a number, "auto" as in `adamas.rules.AdamBC`, or None
            for 0 with `eps` added to the root, as in the paper.
        weight_decay: lambda.
        alignment: gamma, the weight of the direction of all clients: a momentum between rounds, below 1.
        aggregation: "blocks" sends one second moment per block; "coordinates" sends all of them, which
            doubles an upload; "local" starts from 0 in each round.
        bias_correction: Whether the noise variance is subtracted.
        blocks: The partition of the parameters; None takes `Blocks.of(model)`.
        counter: "split" corrects m for its start in this round, v for its start in the first round. "code"
            counts both from the first round, as the public code does, which makes the first steps of later
            rounds ten times smaller.

    Differs from the paper: weight decay shrinks the parameters (with the printed sign they grow); there is a
    floor, because without one about half of the coordinates that only noise moves would be divided by `eps`.
    """

    lr: float = 3e-4
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    floor: float | str | None = "auto"
    weight_decay: float = 0.01
    alignment: float = 0.5
    aggregation: str = "blocks"
    bias_correction: bool = True
    blocks: Blocks | None = None
    counter: str = "split"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.decays(betas=self.betas)
        _validate.positive(eps=self.eps)
        _validate.non_negative(weight_decay=self.weight_decay)
        _validate.decay(alignment=self.alignment)
        _validate.one_of(_AGGREGATIONS, aggregation=self.aggregation)
        _validate.one_of(_COUNTERS, counter=self.counter)
        if isinstance(self.floor, str):
            _validate.one_of(["auto"], floor=self.floor)
        elif self.floor is not None:
            _validate.positive(floor=self.floor)

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Algorithm`; only records that are used."""
        moments = ("second-moments",) if self.aggregation != "local" else ()
        return ("parameters", *moments, *(("direction",) if self.alignment else ()))

    @property
    def uploads(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Algorithm`."""
        return ("increment", "second-moments") if self.aggregation != "local" else ("increment",)

    @property
    def averages(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Algorithm`."""
        return self.uploads[1:]

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        if self.aggregation != "local":
            state["second-moments"] = self._sent(model, moments_like(state["parameters"]))
        if self.alignment:
            state["direction"] = zeros_like(state["parameters"])
        return state

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        parameters = client.parameters
        shared = self.aggregation != "local"
        rule = AlignedAdamW(
            parameters.values(),
            lr=self.rate(round),
            betas=self.betas,
            eps=self.eps,
            floor=self.floor,
            weight_decay=self.weight_decay,
            alignment=self.alignment,
            bias_correction=self.bias_correction,
            second_moments=by_parameter(client, self._received(client.model, received["second-moments"]))
            if shared
            else None,
            steps_before=(round.number - round.lost) * round.local_steps if shared else 0,
            counter=self.counter,
            direction=by_parameter(client, received["direction"]) if self.alignment else None,
        )
        client.train(rule, round.local_steps)
        update = {"increment": differences(parameters, received["parameters"])}
        if shared:
            moments = {name: rule.state[p]["v"] for name, p in parameters.items()}
            update["second-moments"] = self._sent(client.model, moments)
        return update

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """See `Algorithm.aggregate`."""
        # (5) and (6)
        result = super().aggregate(state, updates, expected=expected, clients=clients, round=round)
        if self.alignment:
            result["direction"] = self.direction(updates, expected, round)  # (7)
        return result

    def _sent(self, model: nn.Module, moments: Arrays) -> Arrays:
        """Converts second moments by parameter to the form in which they are sent."""
        if self.aggregation == "coordinates":
            return moments
        return {"blocks": self._blocks(model).means(moments)}

    def _received(self, model: nn.Module, moments: Arrays) -> Arrays:
        """Converts second moments as they were sent to values by parameter."""
        if self.aggregation == "coordinates":
            return moments
        return self._blocks(model).expanded(moments["blocks"])

    def _blocks(self, model: nn.Module) -> Blocks:
        return self.blocks or Blocks.of(model)


class AlignedAdamW(Rule):
    """The local step of `FedAdamW`.

    Args:
        params: Parameters.
        lr: Learning rate of the round.
        betas: See `FedAdamW`.
        eps: See `FedAdamW`.
        floor: See `FedAdamW`.
        weight_decay: See `FedAdamW`.
        alignment: See `FedAdamW`.
        bias_correction: See `FedAdamW`.
        second_moments: Initial v; None for 0.
        steps_before: Number of steps that made `second_moments`.
        counter: See `FedAdamW`.
        direction: The direction of all clients; None for 0.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        floor: float | str | None,
        weight_decay: float,
        alignment: float,
        bias_correction: bool,
        second_moments: dict[Tensor, Tensor] | None,
        steps_before: int,
        counter: str,
        direction: dict[Tensor, Tensor] | None,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "floor": floor,
            "weight_decay": weight_decay,
            "alignment": alignment,
            "bias_correction": bias_correction,
            "counter": counter,
        }
        super().__init__(params, options)
        self._direction = direction
        self._steps_before = steps_before
        start_moments(self, second=second_moments)
        for p in self.trainable():
            self.state[p]["step"] = 0

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        b1, b2 = group["betas"]
        state["step"] += 1
        local, total = state["step"], self._steps_before + state["step"]
        m, v = state["m"], state["v"]
        g = gradient.to(m.dtype)
        m.lerp_(g, 1 - b1)  # (1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)  # (2)
        m_hat = m / (1 - b1 ** (local if group["counter"] == "split" else total))
        step = m_hat.div_(_denominator(v / (1 - b2**total), noise_variance, group, total))
        if self._direction is not None:
            step.add_(self._direction[p].to(step.dtype), alpha=group["alignment"])
        p.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-group["lr"])  # (4)


def _denominator(v_hat: Tensor, noise_variance: Value, group: Options, step: int) -> Tensor:
    """Computes (3), or the root plus `eps`."""
    if not group["bias_correction"]:
        return v_hat.sqrt_().add_(group["eps"])
    v_hat.sub_(noise_variance)
    floor = group["floor"]
    if floor is None:
        return v_hat.clamp_(min=0).sqrt_().add_(group["eps"])
    if floor == "auto":
        floor = automatic_floor(step, noise_variance, group["betas"][1])
    return v_hat.clamp_(min=floor).sqrt_()
