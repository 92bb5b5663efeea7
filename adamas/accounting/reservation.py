"""Reserves what a run plans to release in the ledger of its data set.

Each process that trains has an account of its own. A run that continues a checkpoint does not pay again for
what the accounts of earlier processes hold; it finds that out when it first reserves something.
"""

import json
from collections.abc import Mapping, Sequence
from uuid import uuid4

import dp_accounting
from dp_accounting import NeighboringRelation

from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.events import Entries, counted, within, without
from adamas.accounting.ledger import Ledger, entries_of
from adamas.distributed import Ranks, told_by_writer, write_once


class Reservation:
    """The account of one process of a run in the ledger of its data set.

    Args:
        data_ledger: The ledger of the data set. With None nothing can be reserved, and the account of the
            run that is continued is kept for one that has a ledger.
        relation: The neighbouring relation of the run.
        ranks: The processes of a data-parallel run, of which one writes.
    """

    def __init__(
        self, data_ledger: DataLedger | None, relation: NeighboringRelation, ranks: Ranks | None
    ) -> None:
        self.data_ledger, self._relation, self._ranks = data_ledger, relation, ranks
        self._account = uuid4().hex
        self._reserved: Mapping[str, int] = {}
        self._paid_before: Entries = []
        self._continued: tuple[str, Entries] | None = None

    @property
    def _ledger(self) -> DataLedger:
        assert self.data_ledger is not None
        return self.data_ledger

    @property
    def is_open(self) -> bool:
        """Whether something is reserved."""
        return bool(self._reserved)

    @property
    def must_take_over(self) -> bool:
        """Whether `take_over` must be called before anything else."""
        return self.data_ledger is not None and self._continued is not None

    def state(self) -> tuple[str, Entries]:
        """Returns the account to continue, and what the accounts before it paid for."""
        return self._continued or (self._account, self._paid_before)

    def continue_from(self, account: str, paid_before: Entries) -> None:
        """Continues what `state` returned."""
        self._continued = account, paid_before

    def share_account(self) -> None:
        """Gives all ranks the account of the one that writes."""
        if self._ranks is not None:
            self._account = self._ranks.from_writer(self._account.encode()).decode()

    def take_over(self, released: Entries, journals: Sequence[str]) -> None:
        """Finds out, once, what the data set's ledger has of the run that this one continues.

        Args:
            released: All that the run has released.
            journals: The journals that this run has locked.
        """
        if self._continued is None:
            return
        account, before = self._continued
        own = without(released, before)

        def paid() -> bytes:
            found = self._ledger.account(account)
            if found is None:
                return self._encoded([])
            entries = found.entries
            if found.journal in journals and not found.finished:
                # This run holds the journal that the other one wrote to last: it has ended, and the journal
                # says all that it released.
                entries = own
                self._ledger.settle(account, own)
            return self._encoded(without(own, without(own, entries)))

        self._paid_before = [*before, *entries_of(json.loads(told_by_writer(self._ranks, paid)))]
        self._continued = None

    def covers(self, released: Entries) -> bool:
        """Tells whether everything that the run has released is paid for."""
        return within(counted(without(released, self._paid_before)), self._reserved)

    def reserve(
        self, released: Entries, ahead: tuple[dp_accounting.DpEvent, int], *, title: str, journal: str | None
    ) -> int:
        """Reserves releases and those that are planned after them.

        Args:
            released: All that the run will have released.
            ahead: The planned event, and how many more of it are wanted. A run that continues another one
                takes as many as the budget pays for.
            title: What the data set's ledger calls the run.
            journal: Where the run writes its releases ahead.

        Returns:
            How many of the planned events are paid for.
        """
        own = without(released, self._paid_before)
        event, wanted = ahead

        def granted() -> bytes:
            at_least = 0 if self._paid_before else wanted
            count = self._ledger.reserve(
                self._account, own, ahead=ahead, at_least=at_least, title=title, journal=journal
            )
            return str(count).encode()

        count = int(told_by_writer(self._ranks, granted))
        self._reserved = counted([*own, (event, count)])
        return count

    def settle(self, released: Entries) -> None:
        """Gives back what is reserved and was not released."""
        own = without(released, self._paid_before)
        write_once(self._ranks, lambda: self._ledger.settle(self._account, own))
        self._reserved = {}

    def set_journal(self, journal: str | None) -> None:
        """Writes down where the run writes its releases ahead from now on."""
        write_once(self._ranks, lambda: self._ledger.set_journal(self._account, journal))

    def _encoded(self, entries: Entries) -> bytes:
        return json.dumps(Ledger.of(entries, self._relation).state_dict()).encode()
