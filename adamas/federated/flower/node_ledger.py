"""The ledger of a node: the cost of its records, and the rounds that it has answered.

It is a file, over all runs and restarts, if the node has one; else it is in Flower's state of the node, for
this run. The file has a checksum, so that damage is noticed and never lowers the cost, and a lock, so that
two processes cannot spend the same remainder.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import ConfigRecord, RecordDict

from adamas._storage.files import replace_text
from adamas.accounting.ledger import Ledger
from adamas.federated.checks import read_json
from adamas.federated.flower.node_config import RefusedError

_STATE = "ledger"
_TEXT = "json"
_CHECKSUM = "sha256"


class NodeLedger:
    """The cost of a node's records, and the rounds that it has answered.

    Args:
        text: The text that was written last; None for none.
        write: Stores a text.

    Attributes:
        ledger: Everything that was released.
        rounds: Run -> the last round that was answered in it.
    """

    def __init__(self, text: str | None, write: Callable[[str], None]) -> None:
        self.ledger, self._write = Ledger(), write
        self.rounds: dict[str, int] = {}
        if text is not None:
            content = _intact(text)
            self.rounds = content.pop("rounds", {})
            self.ledger.load_state_dict(content)

    def begin(self, run: int, number: int) -> None:
        """Refuses a round that is not later than the last one of its run."""
        last = self.rounds.get(str(run), -1)
        if number <= last:
            raise RefusedError(f"Round {number} was asked before: this node has answered round {last}.")
        self.rounds[str(run)] = number

    def write(self, ledger: Ledger) -> None:
        """Stores a ledger, which replaces the previous one."""
        self.ledger = ledger
        content = ledger.state_dict() | {"rounds": self.rounds}
        self._write(json.dumps(content | {_CHECKSUM: _checksum(content)}))


@contextmanager
def node_ledger(file: Path | None, state: RecordDict) -> Iterator[NodeLedger]:
    """Opens the ledger of a node. Other processes wait until it is closed.

    Raises:
        RefusedError: If the file is damaged.
    """
    if file is None:
        kept = state.config_records.get(_STATE)
        yield NodeLedger(None if kept is None else str(kept[_TEXT]), functools.partial(_to_state, state))
        return
    with FileLock(file.with_name(file.name + ".lock")):
        try:
            found = NodeLedger(
                file.read_bytes().decode() if file.exists() else None, functools.partial(replace_text, file)
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"Expected ledger={str(file)!r} as this node wrote it, but it is damaged. What was spent is "
                "not known without it: restore an intact copy, or stop using these records."
            ) from error
        yield found


def _to_state(state: RecordDict, text: str) -> None:
    state[_STATE] = ConfigRecord({_TEXT: text})


def _intact(text: str) -> dict[str, Any]:
    """Reads a text and verifies its checksum; texts of an earlier version have none."""
    content = read_json(text)
    if not isinstance(content, dict):
        raise ValueError(f"Expected a mapping of names to values, got {type(content).__name__}.")
    if content.keys() == Ledger().state_dict().keys():
        return content
    if content.pop(_CHECKSUM, None) != _checksum(content):
        raise ValueError(f"Expected {_CHECKSUM} of the content.")
    return content


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
