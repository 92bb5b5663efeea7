"""Keeps what all runs on one data set have spent together, in a file that several processes share.

The file is an SQLite database. Before its first release a run reserves everything that it plans to release,
in one transaction that also checks the budget. So two runs can never count on the same remainder. A run that
ends gives back what it did not release; one that dies keeps its reservation. Nothing depends on clocks.

Each process that trains has an account of its own, even if it continues a run that died: it adds what it
releases itself. So several continuations of one checkpoint add up. Each account has a digest, and a file
whose bits have changed is refused.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import dp_accounting
from dp_accounting import NeighboringRelation

from adamas import _validate
from adamas._words import limit, rounded_up
from adamas.accounting import calibrate
from adamas.accounting.accounts import (
    DAMAGED,
    VERSION,
    Account,
    create_tables,
    read_accounts,
    read_budget,
    write_account,
)
from adamas.accounting.budget import Budget
from adamas.accounting.composition import ACCOUNTANTS, composed_epsilon
from adamas.accounting.events import Entries
from adamas.errors import BudgetError

__all__ = ["Account", "DataLedger"]

_SECONDS_TO_WAIT = 60.0  # for another process's transaction


class DataLedger:
    """The budget of a data set, and what all runs have spent of it.

    Args:
        path: A file that `DataLedger.create` made.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is something else, damaged, or of a newer version.

    Example:
        >>> import tempfile
        >>> event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = DataLedger.create(f"{folder}/data.ledger", epsilon=3.0, delta=1e-5)
        ...     _ = ledger.reserve("a", [(event, 1000)], title="the first run")
        ...     round(ledger.epsilon(), 3), round(ledger.noise_multiplier(sampling_rate=0.01, steps=500), 3)
        (1.828, 0.789)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(
                f"Expected a ledger in {self.path}, found no file. Make one with `adamas ledger create`."
            )
        with self._transaction() as database:
            found = database.execute("SELECT version FROM budget").fetchone()
            if found is None or found[0] != VERSION:
                raise ValueError(
                    f"Expected a ledger of version {VERSION} in {self.path}, found {found and found[0]}. "
                    "Use the version of adamas that wrote it."
                )
            _, epsilon, delta, accountant, relation, _ = read_budget(database)
        self._limit, self._delta, self._accountant = float(epsilon), float(delta), str(accountant)
        self._relation = NeighboringRelation[relation]

    @property
    def budget(self) -> float:
        """The epsilon that all runs together may spend at most."""
        return self._limit

    @property
    def delta(self) -> float:
        """The delta of the budget."""
        return self._delta

    @property
    def accountant(self) -> str:
        """The accountant that computes epsilon."""
        return self._accountant

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation of all runs."""
        return self._relation

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        epsilon: float,
        delta: float,
        accountant: str = "pld",
        relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    ) -> "DataLedger":
        """Makes a ledger with a budget for all runs on a data set.

        Args:
            path: A file that does not exist yet.
            epsilon: The most that all runs together may spend.
            delta: The delta of the budget.
            accountant: A name in `ACCOUNTANTS`.
            relation: The neighbouring relation of all runs.
        """
        _validate.positive(epsilon=epsilon)
        _validate.delta(delta=delta)
        _validate.one_of(ACCOUNTANTS, accountant=accountant)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.open("x").close()
        except FileExistsError as error:
            raise ValueError(
                f"Expected path={str(path)!r} not to exist: a ledger is never replaced."
            ) from error
        database = sqlite3.connect(path)
        try:
            with database:
                create_tables(database, epsilon, delta, accountant, relation)
        finally:
            database.close()
        return cls(path)

    def reserve(
        self,
        account: str,
        entries: Entries,
        *,
        ahead: tuple[dp_accounting.DpEvent, int] | None = None,
        at_least: int | None = None,
        title: str = "",
        journal: str | None = None,
    ) -> int:
        """Reserves what an account will release, in place of its earlier plan.

        Args:
            account: The account; it is opened if it is new.
            entries: Events that must be paid for.
            ahead: An event, and how many times it is planned besides the entries.
            at_least: How many of these must be paid for, too; all of them if None.
            title: A description of the run.
            journal: Where the run writes its releases ahead.

        Returns:
            How many of the events ahead are paid for.

        Raises:
            BudgetError: If the total with all other accounts exceeds the budget. Nothing is written.
        """
        event, wanted = (None, 0) if ahead is None else ahead
        with self._transaction() as database:
            accounts = read_accounts(database)
            others = [entry for one in accounts if one.id != account for entry in one.entries]
            granted = wanted

            def planned(count: int) -> list[tuple[dp_accounting.DpEvent, int]]:
                return [*entries, (event, count)] if event is not None and count else list(entries)

            cost = self._composed([*others, *planned(granted)])
            if cost > self.budget and event is not None and at_least is not None and at_least < wanted:
                budget = Budget(self.budget, self.delta, self.accountant, self.relation)
                granted = budget.most(event, wanted, others=[*others, *entries])
                cost = self._composed([*others, *planned(granted)])
            if cost > self.budget or granted < (wanted if at_least is None else at_least):
                spent = rounded_up(self._composed(others))
                raise BudgetError(
                    f"This run would bring the data set of {self.path} to epsilon={rounded_up(cost)}, above "
                    f"its budget of {limit(self.budget)} at delta={self.delta:g}: {spent} is "
                    "spent or reserved. Take fewer steps or more noise (DataLedger.noise_multiplier says how "
                    "much), or close open runs."
                )
            self._check_kept(accounts, account, planned(granted))
            write_account(database, Account(account, title, planned(granted), False, journal), self.relation)
        return granted

    def settle(self, account: str, entries: Entries) -> None:
        """Replaces an account's reservation with what it released.

        Raises:
            ValueError: If there is no such account, or it has released more.
        """
        with self._transaction() as database:
            accounts = read_accounts(database)
            old = next((one for one in accounts if one.id == account), None)
            if old is None:
                raise ValueError(f"Expected an account of {self.path}, got account={account!r}.")
            self._check_kept(accounts, account, entries)
            write_account(database, replace(old, entries=entries, finished=True), self.relation)

    def _check_kept(self, accounts: list[Account], account: str, entries: Entries) -> None:
        """Raises if a finished account would hold less than it has released."""
        for one in accounts:
            if one.id == account and one.finished and one.entries != entries:
                had, has = self._composed(one.entries), self._composed(entries)
                if has < had:
                    raise ValueError(
                        f"Expected entries of at least what account={account!r} has released, "
                        f"epsilon={rounded_up(had)}, got {rounded_up(has)}."
                    )

    def account(self, account: str) -> Account | None:
        """Returns an account, or None if it has reserved nothing."""
        return next((one for one in self.spendings() if one.id == account), None)

    def set_journal(self, account: str, journal: str | None) -> None:
        """Sets where the run of an account writes its releases ahead from now on."""
        with self._transaction() as database:
            for one in read_accounts(database):
                if one.id == account:
                    write_account(database, replace(one, journal=journal), self.relation)

    def spendings(self) -> list[Account]:
        """Returns all accounts, in the order of their first reservations."""
        with self._transaction() as database:
            return read_accounts(database)

    def epsilon(self) -> float:
        """Returns what all accounts together have spent or reserved."""
        return self._composed(self._entries())

    def epsilon_of(self, account: Account) -> float:
        """Returns what one account alone has spent or reserved."""
        return self._composed(account.entries)

    def noise_multiplier(self, *, sampling_rate: float, steps: int) -> float:
        """Finds the least noise with which a run of Poisson-sampled steps keeps the rest of the budget.

        Raises:
            BudgetError: If nothing is left.
        """
        _validate.rate(sampling_rate=sampling_rate)
        _validate.count(steps=steps)
        before = self._entries()
        spent = self._composed(before)
        if spent >= self.budget:
            raise BudgetError(
                f"Nothing is left of epsilon={limit(self.budget)} in {self.path}: {rounded_up(spent)} is "
                "spent."
            )

        def planned(z: float) -> dp_accounting.DpEvent:
            step = dp_accounting.PoissonSampledDpEvent(sampling_rate, dp_accounting.GaussianDpEvent(z))
            return dp_accounting.SelfComposedDpEvent(step, steps)

        return calibrate.noise_multiplier_for(
            planned,
            before=before,
            epsilon=self.budget,
            delta=self.delta,
            accountant=self.accountant,
            relation=self.relation,
        )

    def _entries(self) -> Entries:
        return [entry for one in self.spendings() for entry in one.entries]

    def _composed(self, entries: Entries) -> float:
        return composed_epsilon(entries, self.delta, self.accountant, self.relation) if entries else 0.0

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction that is alone with the file: other processes wait."""
        database = sqlite3.connect(self.path, timeout=_SECONDS_TO_WAIT, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                raise ValueError(self._damaged(str(error))) from error
            raise OSError(f"Cannot use the ledger {self.path}: {error}. Nothing was reserved.") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(self._damaged(str(error))) from error
        except ValueError as error:
            if error.args == (DAMAGED,):
                raise ValueError(self._damaged(DAMAGED)) from None
            raise
        finally:
            database.close()

    def _damaged(self, why: str) -> str:
        return f"Expected {self.path} to be a ledger of adamas, but {why}. Restore the file from a backup."
