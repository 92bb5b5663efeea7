"""What all runs on one data set have spent together: a file that several processes may use at once.

The file is an SQLite data base. A run reserves all that it plans to release before its first release, in one
transaction that also checks the budget, so that two runs can never count on the same remainder; when it ends
it gives back what it did not release. A run that dies keeps its reservation. Nothing depends on clocks.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dp_accounting
from dp_accounting import NeighboringRelation

from adamas import _validate, calibrate
from adamas._words import bound, limit
from adamas.budget import Entries
from adamas.errors import BudgetError
from adamas.ledger import ACCOUNTANTS, Ledger, composed_epsilon

_VERSION = 1
_SECONDS_TO_WAIT = 60.0  # for another process's transaction

_TABLES = """
CREATE TABLE budget (version INTEGER, epsilon REAL, delta REAL, accountant TEXT, relation TEXT);
CREATE TABLE runs (id TEXT PRIMARY KEY, title TEXT, entries TEXT, finished INTEGER);
"""


@dataclass(frozen=True)
class Spending:
    """What one run spent.

    Attributes:
        id: Of the run.
        title: What it says of itself.
        entries: Its events, with counts: released, or reserved if it has not finished.
        finished: Whether it has given back what it did not release.
    """

    id: str
    title: str
    entries: Entries
    finished: bool


class DataLedger:
    """The budget of a data set, and what was spent of it.

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
        ...     ledger.reserve("a", [(event, 1000)], title="the first run")
        ...     round(ledger.epsilon(), 3), round(ledger.noise_multiplier(sampling_rate=0.01, steps=500), 3)
        (1.828, 0.789)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(
                f"Expected a ledger in {self.path}, found no file. Make one with `adamas ledger create`."
            )
        try:
            with self._transaction() as database:
                version, self.budget, self.delta, self.accountant, relation = database.execute(
                    "SELECT version, epsilon, delta, accountant, relation FROM budget"
                ).fetchone()
        except (sqlite3.DatabaseError, TypeError) as error:
            raise ValueError(f"Expected {self.path} to be a ledger of adamas: {error}.") from error
        if version != _VERSION:
            raise ValueError(
                f"Expected a ledger of version {_VERSION} in {self.path}, found {version}. Update adamas."
            )
        self.relation = NeighboringRelation[relation]

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
            epsilon: All runs together spend at most this.
            delta: At this delta.
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
                database.executescript(_TABLES)
                database.execute(
                    "INSERT INTO budget VALUES (?, ?, ?, ?, ?)",
                    (_VERSION, epsilon, delta, accountant, relation.name),
                )
        finally:
            database.close()
        return cls(path)

    def reserve(self, run: str, entries: Entries, *, title: str = "") -> None:
        """Writes down what a run plans to release, in place of an earlier plan of the same run.

        Raises:
            BudgetError: If that and what other runs spent or reserved exceed the budget. Nothing is written.
        """
        with self._transaction() as database:
            others = [one for one in _spendings(database) if one.id != run]
            together = [entry for one in others for entry in one.entries] + list(entries)
            cost = composed_epsilon(together, self.delta, self.accountant, self.relation)
            if cost > self.budget:
                spent = self._composed(others)
                raise BudgetError(
                    f"This run would bring the data set of {self.path} to epsilon={bound(cost)}, above its "
                    f"budget of {limit(self.budget)} at delta={self.delta:g}: {bound(spent)} is spent or "
                    "reserved. Take fewer steps or more noise (DataLedger.noise_multiplier says how much), "
                    "or close open runs."
                )
            database.execute(
                "INSERT INTO runs VALUES (?, ?, ?, 0) "
                "ON CONFLICT (id) DO UPDATE SET entries = excluded.entries, finished = 0",
                (run, title, _to_text(entries, self.relation)),
            )

    def settle(self, run: str, entries: Entries) -> None:
        """Replaces a run's reservation by what it released."""
        with self._transaction() as database:
            changed = database.execute(
                "UPDATE runs SET entries = ?, finished = 1 WHERE id = ?",
                (_to_text(entries, self.relation), run),
            ).rowcount
        if not changed:
            raise ValueError(f"Expected a run of {self.path}, got run={run!r}.")

    def spendings(self) -> list[Spending]:
        """What each run spent, in the order of their first reservations."""
        with self._transaction() as database:
            return _spendings(database)

    def epsilon(self) -> float:
        """What all runs together have spent or reserved."""
        return self._composed(self.spendings())

    def epsilon_of(self, spending: Spending) -> float:
        """What one run alone has spent or reserved."""
        return self._composed([spending])

    def noise_multiplier(self, *, sampling_rate: float, steps: int) -> float:
        """The least noise with which a run of so many Poisson-sampled steps keeps the rest of the budget.

        Raises:
            BudgetError: If nothing is left.
        """
        _validate.rate(sampling_rate=sampling_rate)
        _validate.count(steps=steps)
        before = [entry for one in self.spendings() for entry in one.entries]
        spent = composed_epsilon(before, self.delta, self.accountant, self.relation) if before else 0.0
        if spent >= self.budget:
            raise BudgetError(
                f"Nothing is left of epsilon={limit(self.budget)} in {self.path}: {bound(spent)} is spent."
            )

        def planned(z: float) -> dp_accounting.DpEvent:
            step = dp_accounting.PoissonSampledDpEvent(sampling_rate, dp_accounting.GaussianDpEvent(z))
            return dp_accounting.ComposedDpEvent(
                [dp_accounting.SelfComposedDpEvent(event, count) for event, count in [*before, (step, steps)]]
            )

        return calibrate.noise_multiplier_for(
            planned,
            epsilon=self.budget,
            delta=self.delta,
            accountant=self.accountant,
            relation=self.relation,
        )

    def _composed(self, spendings: list[Spending]) -> float:
        entries = [entry for one in spendings for entry in one.entries]
        return composed_epsilon(entries, self.delta, self.accountant, self.relation) if entries else 0.0

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Alone with the file: another process waits."""
        database = sqlite3.connect(self.path, timeout=_SECONDS_TO_WAIT, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        finally:
            database.close()


def _spendings(database: sqlite3.Connection) -> list[Spending]:
    rows = database.execute("SELECT id, title, entries, finished FROM runs ORDER BY rowid").fetchall()
    return [Spending(run, title, _from_text(text), bool(finished)) for run, title, text, finished in rows]


def _to_text(entries: Entries, relation: NeighboringRelation) -> str:
    ledger = Ledger(relation)
    for event, count in entries:
        ledger.record(event, count)
    return json.dumps(ledger.state_dict())


def _from_text(text: str) -> Entries:
    ledger = Ledger()
    ledger.load_state_dict(json.loads(text))
    return ledger.entries
