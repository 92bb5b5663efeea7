r"""The privacy cost of federated training, for a record or for a client.

Unit `record`: each local step is a Poisson-subsampled Gaussian on one client's examples, and everything that
leaves the client is a function of its releases. A client that takes part in :math:`T_i` rounds of :math:`K`
steps composes :math:`T_i K` of them; in the worst case it takes part in all rounds.

Nested bound: if the clients of a round are drawn at random, with probability :math:`l` each, a record takes
part in :math:`K` steps with probability :math:`l`, and else in none,

.. math::
    \delta_{round}(\epsilon) \le l\,\delta_K(\epsilon) + (1-l)\max(0, 1 - e^\epsilon), \qquad
    (\alpha-1)\,D_\alpha \le \log\bigl(1 - l + l\,e^{(\alpha-1) D_\alpha^K}\bigr)

by joint convexity. Removing the record is not the same as not drawing its client, so the stronger
amplification of sampled records does not hold here.

Unit `client`: a round is a Gaussian on the sum of whole updates, with Poisson sampling of clients.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from adamas import _validate
from adamas.accounting import calibrate, ledger
from adamas.sampling import joint_noise_multiplier

UNITS = ("record", "client")
"""The protected unit: an example, by noise on the clients; or a client, by noise on the server."""

_CELL = 1e-3  # width of the cells to which the privacy loss is rounded up
_SPAN = 40.0  # largest privacy loss that has a cell


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The quantities that the guarantee of a federated training depends on.

    Attributes:
        unit: "record" or "client".
        rounds: T.
        local_steps: K; ignored for the unit "client".
        sampling_rate: Sampling rate of records in a local step; for the unit "client", of clients in a round.
        queries: Releases on the batch of a local step.
        delta: The delta of the guarantee.
        accountant: "pld" or "rdp".
        participation: Probability that a client takes part in a round, for the nested bound; None assumes
            that it takes part in all rounds.
    """

    unit: str = "record"
    rounds: int
    local_steps: int = 1
    sampling_rate: float
    queries: int = 1
    delta: float
    accountant: str = "pld"
    participation: float | None = None

    def __post_init__(self) -> None:
        _validate.one_of(UNITS, unit=self.unit)
        _validate.count(rounds=self.rounds, local_steps=self.local_steps, queries=self.queries)
        _validate.rate(sampling_rate=self.sampling_rate)
        _validate.probability(delta=self.delta)
        _validate.one_of(ledger.ACCOUNTANTS, accountant=self.accountant)
        if self.participation is not None:
            _validate.rate(participation=self.participation)
            if self.unit == "client":
                raise ValueError(
                    "Expected participation=None for unit='client', whose sampling_rate is that of clients."
                )

    def with_rate(self, sampling_rate: float) -> "Plan":
        """Returns the plan with another sampling rate: that of a client with another number of records."""
        return replace(self, sampling_rate=sampling_rate)

    @property
    def steps(self) -> int:
        """Number of events that compose in the worst case."""
        return self.rounds * (self.local_steps if self.unit == "record" else 1)

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """Returns the event of one step of a client, or of one round of the server."""
        joint = joint_noise_multiplier([noise_multiplier] * self.queries)
        return dp_accounting.PoissonSampledDpEvent(self.sampling_rate, dp_accounting.GaussianDpEvent(joint))

    def epsilon(self, noise_multiplier: float, *, rounds: int | None = None) -> float:
        """Computes the epsilon of the whole training, or of a client that takes part in `rounds` rounds.

        Example:
            >>> plan = Plan(rounds=100, local_steps=20, sampling_rate=16 / 500, delta=1e-5, accountant="rdp")
            >>> round(plan.epsilon(1.0), 1), round(plan.epsilon(1.0, rounds=10), 2)
            (10.5, 3.45)
        """
        _validate.noise_multiplier(noise_multiplier=noise_multiplier)
        if noise_multiplier == 0:
            return float("inf")
        if self.participation is not None and rounds is None:
            return self._nested(noise_multiplier)
        count = self.steps if rounds is None else rounds * (self.steps // self.rounds)
        if not count:
            return 0.0
        entries = [(self.event(noise_multiplier), count)]
        return ledger.composed_epsilon(entries, self.delta, self.accountant)

    def noise_multiplier(self, epsilon: float) -> float:
        """Computes the least noise multiplier whose epsilon is at most the target.

        Raises:
            ValueError: If no noise is enough; the message has the least epsilon that the settings allow.
        """
        return calibrate.least_noise_multiplier(self.epsilon, epsilon=epsilon, delta=self.delta)

    def _nested(self, noise_multiplier: float) -> float:
        assert self.participation is not None
        joint = joint_noise_multiplier([noise_multiplier] * self.queries)
        if self.accountant == "rdp":
            gamma = _round_renyi(joint, self.sampling_rate, self.local_steps, self.participation)
            return float(compute_epsilon(ledger.RDP_ORDERS, gamma * self.rounds, self.delta)[0])
        loss = _round_loss(joint, self.sampling_rate, self.local_steps, self.participation)
        return float(loss.self_compose(self.rounds).get_epsilon_for_delta(self.delta))


@lru_cache(maxsize=8)
def _round_renyi(noise_multiplier: float, rate: float, steps: int, participation: float) -> np.ndarray:
    """Computes the Renyi divergence of a round, for each order."""
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    accountant = RdpAccountant(ledger.RDP_ORDERS)
    with ledger.quiet_accountants():
        accountant.compose(event, steps)
    factors = np.asarray(ledger.RDP_ORDERS) - 1
    with np.errstate(divide="ignore"):  # log(0) if participation is 1
        absent = np.log1p(-participation)
    gamma = np.logaddexp(absent, np.log(participation) + factors * accountant._rdp) / factors
    return np.asarray(np.maximum(gamma, 0.0))  # rounding must not make a loss negative


@lru_cache(maxsize=8)
def _round_loss(
    noise_multiplier: float, rate: float, steps: int, participation: float
) -> PrivacyLossDistribution:
    """Bounds the privacy loss of a round from above: at each epsilon, by the worse of the two directions."""
    taken = from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=_CELL, sampling_prob=rate
    ).self_compose(steps)
    last = int(_SPAN / _CELL)
    cells = np.arange(-last, last + 1)
    values = cells * _CELL
    deltas = participation * np.asarray(taken.get_delta_for_epsilon(values))
    deltas += (1 - participation) * np.maximum(-np.expm1(values), 0.0)
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(_CELL, cells, deltas))
