"""The rows of a data set's ledger in SQLite: its budget and its accounts, each with a digest."""

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from dp_accounting import NeighboringRelation

from adamas.accounting.events import Entries
from adamas.accounting.ledger import Ledger, entries_of

VERSION = 2
"""The version of the tables."""
DAMAGED = "its digests do not fit its content"
"""The message of the `ValueError` if a row has changed."""

_TABLES = """
CREATE TABLE budget (
    version INTEGER, epsilon REAL, delta REAL, accountant TEXT, relation TEXT, accounts INTEGER, digest TEXT
);
CREATE TABLE accounts (
    id TEXT PRIMARY KEY, title TEXT, entries TEXT, finished INTEGER, journal TEXT, digest TEXT
);
"""


@dataclass(frozen=True)
class Account:
    """The spending of one process that trained.

    Attributes:
        id: The name of the account.
        title: A description of the run.
        entries: Its events with counts: released, or reserved if it has not finished.
        finished: Whether it has given back what it did not release.
        journal: Where its run writes releases ahead; None for nowhere.
    """

    id: str
    title: str
    entries: Entries
    finished: bool
    journal: str | None = None


def create_tables(
    database: sqlite3.Connection, epsilon: float, delta: float, accountant: str, relation: NeighboringRelation
) -> None:
    """Makes the tables of a new ledger, with its budget and no accounts."""
    database.executescript(_TABLES)
    row = [VERSION, float(epsilon), float(delta), accountant, relation.name, 0]
    database.execute("INSERT INTO budget VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _digest(row)))


def read_accounts(database: sqlite3.Connection) -> list[Account]:
    """Reads all accounts, in the order of their first reservations."""
    rows = database.execute(
        "SELECT id, title, entries, finished, journal, digest FROM accounts ORDER BY rowid"
    ).fetchall()
    if len(rows) != read_budget(database)[-1] or any(_digest(row) != digest for *row, digest in rows):
        raise ValueError(DAMAGED)
    return [
        Account(account, title, entries_of(json.loads(text)), bool(finished), journal)
        for account, title, text, finished, journal, _ in rows
    ]


def write_account(database: sqlite3.Connection, account: Account, relation: NeighboringRelation) -> None:
    """Writes an account in place of its earlier version, and the number of accounts."""
    text = json.dumps(Ledger.of(account.entries, relation).state_dict())
    row = [account.id, account.title, text, int(account.finished), account.journal]
    database.execute(
        "INSERT INTO accounts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "title = excluded.title, entries = excluded.entries, finished = excluded.finished, "
        "journal = excluded.journal, digest = excluded.digest",
        (*row, _digest(row)),
    )
    budget = read_budget(database)
    budget[-1] = database.execute("SELECT COUNT(*) FROM accounts").fetchone()[0]
    database.execute("UPDATE budget SET accounts = ?, digest = ?", (budget[-1], _digest(budget)))


def read_budget(database: sqlite3.Connection) -> list[Any]:
    """Reads version, epsilon, delta, accountant, relation and the number of accounts."""
    rows = database.execute("SELECT * FROM budget").fetchall()
    if len(rows) != 1 or _digest(list(rows[0][:-1])) != rows[0][-1]:
        raise ValueError(DAMAGED)
    return list(rows[0][:-1])


def _digest(row: list[Any]) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()
