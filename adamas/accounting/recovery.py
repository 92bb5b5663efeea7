"""Releases of processes that died, which the run that continues their checkpoint must count.

A run with a given seed draws the same batches and the same noise again. What it is about to release is
compared with what was made: the same bits are the same release, and cost nothing. Without a seed the batches
and the noise are new, and all that was made is recorded at once.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from adamas.accounting.journal import Release
from adamas.accounting.ledger import Ledger
from adamas.sampling import Sampler


class Recovered:
    """Releases that were made after the checkpoint, by a run whose draws this one repeats."""

    def __init__(self) -> None:
        self._made: list[Release] = []
        self._due: list[Release] = []  # those that are not in the ledger yet

    def __bool__(self) -> bool:
        return bool(self._made)

    def __contains__(self, release: Release) -> bool:
        return release in self._made

    @property
    def due(self) -> Sequence[Release]:
        """Those that the ledger does not have yet."""
        return self._due

    def add(self, releases: Iterable[Release], steps_done: int) -> None:
        """Adds releases of processes that died.

        Raises:
            ValueError: If one of them is a second release on a batch that the checkpoint has as finished.
        """
        lost = list(releases)
        if any(release.step < steps_done - 1 for release in lost):
            raise ValueError(
                "Expected a file whose finished steps have no other releases, but an older file of the run "
                "was continued with the same seed and other data, loss or settings. Continue the file that "
                "was written last, or start again with another seed."
            )
        self._made = sorted([*self._made, *lost], key=lambda release: release.step)
        self._due = sorted([*self._due, *lost], key=lambda release: release.step)

    def like(self, release: Release) -> Release:
        """Returns one that was made at the same step with the same multiplier; otherwise the release."""
        return next((made for made in self._made if made[:2] == release[:2]), release)

    def attempted(self, release: Release) -> Release:
        """Returns the release with the attempt that it is: one that was made before, or a new one."""
        before = [made for made in self._made if made.step == release.step]
        for made in before:
            if release.repeats(made):
                return made
        return release._replace(attempt=1 + max((made.attempt for made in before), default=-1))

    def later(self, step: int) -> list[Release]:
        """Returns those that are due after a step."""
        return [release for release in self._due if release.step > step]

    def record_until(self, step: int, ledger: Ledger, sampler: Sampler) -> None:
        """Records those that are due up to a step. They stay due until `drop_until`."""
        _record([release for release in self._due if release.step <= step], ledger, sampler)

    def record_later(self, step: int, ledger: Ledger, sampler: Sampler) -> None:
        """Records those that are due after a step."""
        _record(self.later(step), ledger, sampler)

    def drop_until(self, step: int) -> None:
        """Forgets those that are due up to a step: the ledger has them."""
        self._due = self.later(step)

    def plain(self, steps_done: int) -> dict[str, Any]:
        """Returns everything that a later run must know, as plain data."""
        # Another release may follow on the last batch.
        made = [release for release in self._made if release.step >= steps_done - 1]
        return {
            "made_before": [release.plain() for release in made],
            "to_record": [release.plain() for release in self._due],
        }

    def load_plain(self, state: dict[str, Any]) -> None:
        """Takes over what `plain` returned."""
        self._made = [Release.of(value) for value in state["made_before"]]
        self._due = [Release.of(value) for value in state["to_record"]]


def record_lost(releases: Iterable[Release], ledger: Ledger, sampler: Sampler, *, steps_done: int) -> None:
    """Records what one process has released on batches that are never drawn again.

    Args:
        releases: The releases of one process.
        ledger: The ledger of the run that continues.
        sampler: Its sampler.
        steps_done: Steps that the checkpoint has, if this process wrote it: another release on its last batch
            joins that batch. 0 for other processes, which drew batches of their own.
    """
    units: dict[int, dict[int, list[float]]] = {}
    for release in releases:
        if release.step == steps_done - 1:
            ledger.record_release(sampler, release.step, release.noise_multiplier)
        else:
            unit = units.setdefault(sampler.unit(release.step), {})
            unit.setdefault(release.step, []).append(release.noise_multiplier)
    for unit in units.values():
        ledger.record(sampler.event(unit))


def _record(releases: Iterable[Release], ledger: Ledger, sampler: Sampler) -> None:
    for release in releases:
        ledger.record_release(sampler, release.step, release.noise_multiplier)
