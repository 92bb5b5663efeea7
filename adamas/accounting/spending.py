"""Owns what a run spends: plan, ledger, budget, reservation and journals.

`Spending.charge` is the only way to a release. It takes four steps in this order, and if one of them raises,
nothing is released:

    plan      the release is one that was planned, and the budget pays for it
    reserve   the data set's ledger has it on disk
    journal   the journals next to the run's checkpoints have it on disk
    record    the ledger has it

**Keys.** With a given seed, the noise of a release is a function of the seed and of a draw counter. A run
that continues a checkpoint repeats draws that were made before it died. `charge` compares what it is about to
release with the journal. If both are the same to the last bit, it is the same release, and costs nothing.
Otherwise it gets a key of its own, and is charged. A release also gets a key of its own if `extend` has
changed its multiplier, or if its draw counter differs from its step.
"""

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import dp_accounting

from adamas import _validate
from adamas.accounting.budget import Budget
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.events import Entries, counted, within
from adamas.accounting.journal import Journal, Release
from adamas.accounting.journals import name_of, names_of, write_ahead
from adamas.accounting.ledger import Ledger, RunLedger, entries_of
from adamas.accounting.live import EpsilonBound
from adamas.accounting.plan import Plan, noise_after, units
from adamas.accounting.recovery import Recovered, record_lost
from adamas.accounting.reservation import Reservation
from adamas.distributed import Ranks, write_once
from adamas.errors import BudgetError
from adamas.sampling import Sampler


class Spending:
    """Owns what a run may release, has released, and has reserved.

    Args:
        sampler: How the batches of the releases are drawn.
        plan: Steps, noise and budget. The budget must pay for the plan.
        delta: The delta of the guarantee.
        accountant: A name in `ACCOUNTANTS`.
        data_ledger: Where the run reserves what it plans to release; None for nowhere.
        ranks: The processes of a data-parallel run, of which one writes.
        title: What the data set's ledger calls the run.
        spent: Releases on the data before the run, which count towards the budget.
        enforced: Whether plan and budget hold. False for replays, whose releases are not seen.

    Attributes:
        enforced: As given.
        ledger: The releases, as events.
        steps_done: Steps that have a release.
        journals: Where releases are written ahead.

    Example:
        >>> from adamas.sampling import Poisson
        >>> spending = Spending(Poisson(100, 10), Plan(2, 1.0), delta=1e-5, accountant="rdp")
        >>> for step in range(2):
        ...     _ = spending.charge(step, [1.0])
        >>> [count for _, count in spending.ledger.entries]
        [2]
        >>> spending.charge(2, [1.0])
        Traceback (most recent call last):
        adamas.errors.BudgetError: Step 3 is beyond the 2 steps of the plan. Give the run more by run.extend.
    """

    def __init__(
        self,
        sampler: Sampler,
        plan: Plan,
        *,
        delta: float,
        accountant: str,
        data_ledger: DataLedger | None = None,
        ranks: Ranks | None = None,
        title: str = "",
        spent: Entries = (),
        enforced: bool = True,
    ) -> None:
        self.title, self.enforced = title, enforced
        self.sampler, self.delta, self.accountant = sampler, delta, accountant
        self._spent = list(spent)
        self.ledger: Ledger = self._ledger_of_spent()
        self.steps_done = 0
        self._first_step = 0  # whose batch this run draws
        self.journals: list[Journal] = []
        self._plan, self._first_multiplier = plan, plan.noise_multiplier
        self._ranks = ranks
        self._process = os.getpid()
        self._recovered = Recovered()
        # The budget pays for these.
        self._promised: Entries = [*self._spent, (plan.event(sampler), units(plan.steps, sampler))]
        self._limit: Budget | None = None
        self._bound = EpsilonBound(delta, accountant, sampler.relation)
        self._reservation = Reservation(data_ledger, sampler.relation, ranks)

    # --- reading --------------------------------------------------------------------------------------

    @property
    def data_ledger(self) -> DataLedger | None:
        """Where the run reserves what it plans to release; None for nowhere."""
        return self._reservation.data_ledger

    @property
    def plan(self) -> Plan:
        """The current plan."""
        return self._plan

    def complete(self) -> Ledger:
        """Returns the ledger, with releases of a run that died at steps that are still to come."""
        if not self._recovered.due:
            return self.ledger
        ledger = self.ledger.copy()
        self._recovered.record_later(-1, ledger, self.sampler)
        return ledger

    def epsilon(self, accountant: str | None = None, *, delta: float | None = None) -> float:
        """Returns the epsilon spent so far, at the run's delta or another one."""
        return self.complete().epsilon(self.delta if delta is None else delta, accountant or self.accountant)

    def epsilon_bound(self) -> float:
        """Returns an upper bound on `epsilon()`, mostly without composing: see `EpsilonBound`."""
        entries = self.complete().entries
        bound = self._bound(entries, self._event(), self._units_after(self.steps_done - 1))
        budget = self._plan.budget
        if budget is None or not self.enforced or bound <= budget:
            return bound
        return budget if within(counted(entries), counted(self._promised)) else self.epsilon()

    @property
    def is_fresh(self) -> bool:
        """Whether the run has released nothing: only what was spent before."""
        return counted(self.complete().entries) == counted(self._spent)

    def rehearsal(self) -> "Spending":
        """Returns the spending of a replay: the same plan, not enforced, and without files."""
        return Spending(
            self.sampler,
            self._plan,
            delta=self.delta,
            accountant=self.accountant,
            ranks=self._ranks,
            spent=self._spent,
            enforced=False,
        )

    def _ledger_of_spent(self) -> RunLedger:
        ledger = RunLedger(self.sampler.relation)
        for event, count in self._spent:
            ledger.record(event, count)
        return ledger

    # --- charging -------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                "This run was made in another process: a fork would repeat its noise, and its ledger "
                "would not know what it spends. Call make_private in the process that trains."
            )

    def check(self, step: int) -> None:
        """Raises `BudgetError` unless a release on the batch of a step is planned and paid for."""
        self._check_process()
        if not self.enforced:
            return
        if step >= self._plan.steps:
            raise BudgetError(
                f"Step {step + 1} is beyond the {self._plan.steps} steps of the plan. Give the run more by "
                "run.extend."
            )
        if step < self._first_step:
            raise RuntimeError(
                f"Expected a batch from step {self._first_step + 1} on, got step {step + 1}: without a seed "
                "the run that was saved drew another batch for it, whose event a new release must not join. "
                "Go on with run.batches()."
            )
        release = Release(step, self._plan.noise_multiplier)
        self._check_paid([self._recovered.like(release)])

    def _check_paid(self, releases: Sequence[Release]) -> None:
        if self._plan.budget is None or not self.enforced:
            return
        entries = self._after(releases)
        if not within(counted(entries), counted(self._promised)):
            step = releases[0].step
            self._budget().require(entries, self._event(), ahead=self._units_after(step))

    def _check_repeated(self, releases: Sequence[Release]) -> None:
        """Raises `BudgetError` for a repeated step that now differs and that the budget does not pay for."""
        try:
            self._check_paid(releases)
        except BudgetError as error:
            if not releases[0].attempt:
                raise
            raise BudgetError(
                f"Step {releases[0].step + 1} was released before, by the run that died, and differs now, so "
                f"it would be charged again. {error} Or restore what has changed since: data, weights, loss, "
                "schedule, micro-batches, number of threads, machine, or versions of packages."
            ) from error

    def charge(
        self,
        step: int,
        multipliers: Sequence[float],
        identify: Callable[[], bytes] = bytes,
        *,
        draw: int | None = None,
    ) -> tuple[int, ...]:
        """Charges releases on the batch of a step, and returns the key of their noise.

        Args:
            step: The step.
            multipliers: The noise multiplier of each release. The first one draws the noise.
            identify: Names the release; see `Noise.identify`. It is called if there is a journal.
            draw: The draw counter of the noise. By default it is the step, as in a run with one release at
                each step.
        """
        self.check(step)
        if any(z not in (self._plan.noise_multiplier, 0.0) for z in multipliers):
            raise ValueError(f"Expected releases with the noise multiplier of the plan, got {multipliers!r}.")
        identity = identify() if self.journals or self._recovered else b""
        releases = [self._recovered.attempted(Release(step, z, identity)) for z in multipliers]
        if self._recovered:
            self._check_repeated(releases)
        if self.data_ledger is not None:
            self._reserve(releases)
        new = [release for release in releases if release not in self._recovered]
        if new and self.journals:
            write_once(self._ranks, lambda: write_ahead(self.journals, new))
        self._record_in(self.ledger, releases)
        self._recovered.drop_until(step)
        self.steps_done = max(self.steps_done, step + 1)
        first = releases[0]
        usual = first.attempt == 0 and first.noise_multiplier == self._first_multiplier
        if usual and (draw in (None, step) or not self.enforced):
            return ()
        # Attempts are counted for each step: runs that come to a draw at different steps need both numbers.
        return first.attempt, *struct.unpack("<Q", struct.pack("<d", first.noise_multiplier)), step

    def _record_in(self, ledger: Ledger, releases: Sequence[Release]) -> None:
        """Records releases, after those of a run that died up to their step."""
        step = releases[0].step
        self._recovered.record_until(step, ledger, self.sampler)
        for release in releases:
            if release not in self._recovered:
                ledger.record_release(self.sampler, step, release.noise_multiplier)

    def _after(self, releases: Sequence[Release]) -> Entries:
        """Returns the events after these releases, with all releases of a run that died."""
        planned = self.ledger.copy()
        self._record_in(planned, releases)
        self._recovered.record_later(releases[0].step, planned, self.sampler)
        return planned.entries

    # --- the plan -------------------------------------------------------------------------------------

    def extend(self, *, steps: int, epsilon: float | None, noise_multiplier: float | None) -> None:
        """Plans more steps: see `PrivateRun.extend`."""
        _validate.count(steps=steps)
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError("Expected exactly one of epsilon and noise_multiplier.")
        if noise_multiplier is None:
            assert epsilon is not None
            noise_multiplier = noise_after(
                self.complete(), self.sampler, steps, epsilon, self.delta, self.accountant
            )
        else:
            _validate.noise_multiplier(noise_multiplier=noise_multiplier)
        self._plan = Plan(self.steps_done + steps, noise_multiplier, epsilon)
        self._promised = [*self.complete().entries, (self._event(), units(steps, self.sampler))]

    def _shorten(self) -> None:
        """Plans as many steps as the budget still pays for."""
        if self._plan.budget is None or self.steps_done >= self._plan.steps:
            return
        wanted = self._units_after(self.steps_done - 1)
        granted = self._budget().most(self._event(), wanted, others=self.complete().entries)
        self._plan = self._plan.shortened(self.steps_done - 1, granted, wanted, self.sampler)

    def _event(self) -> dp_accounting.DpEvent:
        return self._plan.event(self.sampler)

    def _units_after(self, step: int) -> int:
        return self._plan.units_after(step, self.sampler)

    def _budget(self) -> Budget:
        assert self._plan.budget is not None
        if self._limit is None or self._limit.epsilon != self._plan.budget:
            self._limit = Budget(self._plan.budget, self.delta, self.accountant, self.ledger.relation)
        return self._limit

    # --- the data set's ledger ------------------------------------------------------------------------

    def _reserve(self, releases: Sequence[Release]) -> None:
        """Makes sure that the data set's ledger has these releases, and all that are planned after them."""
        self._take_over_account()
        step, now = releases[0].step, self._after(releases)
        if self._reservation.covers(now):
            return
        paid = len({self.sampler.unit(release.step) for release in self._recovered.later(step)})
        # Releases that were made may be repeated, and then cost nothing.
        wanted = max(0, self._units_after(step) - paid)
        granted = self._reservation.reserve(
            now,
            (self._event(), wanted),
            title=f"{self.title}, {self._plan.steps} steps, multiplier {self._plan.noise_multiplier:g}",
            journal=name_of(self.journals),
        )
        self._plan = self._plan.shortened(step, granted + paid, wanted + paid, self.sampler)

    def _take_over_account(self) -> None:
        if self._reservation.must_take_over:
            held = names_of(self.journals) if any(journal.locked for journal in self.journals) else []
            self._reservation.take_over(self.complete().entries, held)

    def close(self) -> None:
        """Gives back what is reserved in the data set's ledger and was not released."""
        if self.data_ledger is None:
            return
        self._check_process()  # the parent of a fork goes on with the reservation
        self._take_over_account()
        if self._reservation.is_open:
            self._reservation.settle(self.complete().entries)

    def share_account(self) -> None:
        """Gives all ranks the account of the one that writes."""
        self._reservation.share_account()

    def use_journals(self, journals: Sequence[Journal]) -> None:
        """Writes releases ahead to these journals from now on."""
        self.journals = list(journals)
        if self._reservation.is_open:
            self._reservation.set_journal(name_of(self.journals))

    # --- files ----------------------------------------------------------------------------------------

    def recover(self, parts: Sequence[Sequence[Release]], *, repeatable: bool) -> None:
        """Takes over releases that were made after the run was saved.

        Args:
            parts: The releases of each process that died.
            repeatable: Whether this run draws the same batches and noise again. Then each release is
                compared with the earlier ones at its step. Otherwise all are recorded at once, in addition
                to those that this run will make.
        """
        if repeatable:
            self._recovered.add((release for part in parts for release in part), self.steps_done)
        else:
            for number, part in enumerate(parts):
                done = self.steps_done if number == 0 else 0
                record_lost(part, self.ledger, self.sampler, steps_done=done)
            self._shorten()
        self._take_over_account()  # the next file that is written names this run's own account

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that a continuing run must know, as plain data."""
        account, before = self._reservation.state()
        return {
            "plan": [self._plan.steps, self._plan.noise_multiplier, self._plan.budget],
            "promised": self._plain_entries(self._promised),
            "steps_done": self.steps_done,
            "ledger": self.ledger.state_dict(),
            **self._recovered.plain(self.steps_done),
            "account": account,
            "paid_before": self._plain_entries(before),
        }

    def _plain_entries(self, entries: Entries) -> dict[str, Any]:
        return Ledger.of(entries, self.ledger.relation).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues what `state_dict` returned.

        Releases in `spent` count again, as later ones: they may not be those that the saved ledger has. The
        run then plans as many steps as the budget still pays for.
        """
        self.ledger = RunLedger(self.sampler.relation)
        self.ledger.load_state_dict(state["ledger"], self.sampler)
        self.steps_done = state["steps_done"]
        if self.sampler.seed.given is None:
            self._first_step = self.steps_done
        self._plan = Plan(*state["plan"])
        self._recovered.load_plain(state)
        self._promised = entries_of(state["promised"])
        self._reservation.continue_from(state["account"], entries_of(state["paid_before"]))
        if self._spent:
            for event, count in self._spent:
                self.ledger.record(event, count)
            self._shorten()
