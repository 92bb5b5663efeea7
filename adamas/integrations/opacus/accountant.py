"""Offers the run's ledger by the names of Opacus' accountants."""

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from adamas.run.loop import PrivateRun

ACCOUNTANTS = {"prv": "pld", "pld": "pld", "rdp": "rdp"}
"""Names of Opacus' accountants, and `pld`, with the accountant that takes their place."""


class Accountant:
    """Reads the ledger of a run.

    Args:
        mechanism: A name in `ACCOUNTANTS`.
    """

    def __init__(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self.run: PrivateRun | None = None

    def mechanism(self) -> str:
        """Returns the name that the engine was given."""
        return self._mechanism

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """Noise multiplier, sampling rate and number of releases; shuffled batches count by epoch."""
        entries = [] if self.run is None else self.run.ledger.entries
        return [(*_terms(event), count) for event, count in entries]

    def __len__(self) -> int:
        return len(self.history)

    def get_epsilon(self, delta: float) -> float:
        """Returns the epsilon spent so far; 0 before `make_private`.

        Args:
            delta: Below 1/N.
        """
        if self.run is None:
            return 0.0
        check_delta(self.run.loader.sampler.dataset_size, delta=delta)
        return self.run.epsilon(ACCOUNTANTS[self._mechanism], delta=delta)


def check_delta(dataset_size: int, **named: float | None) -> None:
    """Raises for a delta with which publishing a record would count as private."""
    ((name, delta),) = named.items()
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise TypeError(f"Expected {name}={delta!r} to be a number.")
    if not 0 < delta < 1 / dataset_size:
        raise ValueError(
            f"Expected {name}={delta!r} in (0, 1/N) = (0, {1 / dataset_size:.3g}) for N = {dataset_size} "
            "examples: with more, publishing a random record would count as private."
        )


def _terms(event: object) -> tuple[float, float]:
    if isinstance(event, PoissonSampledDpEvent):
        return event.event.noise_multiplier, event.sampling_probability
    assert isinstance(event, GaussianDpEvent)
    return event.noise_multiplier, 1.0
