"""The checkpoint files of a run, each of which journals the releases that follow it."""

from collections.abc import Callable
from pathlib import Path

from adamas.accounting.journal import Journal
from adamas.run.checkpoint import Checkpoints


class SavedFiles:
    """The files in which a run was saved.

    Args:
        main: Where the run saves itself; None for nowhere.
        use_journals: Told the journals of all files when one is added.

    Attributes:
        main: Where the run was last saved, or saves itself; None for nowhere.
    """

    def __init__(self, main: Checkpoints | None, use_journals: Callable[[list[Journal]], None]) -> None:
        self.main = main
        self._copies: list[Checkpoints] = []
        self._use_journals = use_journals

    @property
    def every(self) -> int | None:
        """Steps between automatic checkpoints; None for none."""
        return self.main.every if self.main is not None else None

    def at(self, path: str | Path) -> Checkpoints:
        """Returns the file at a path: one that the run was saved in before, or a new one."""
        new = Checkpoints(path, self.every)
        return next((one for one in self._all() if one.path == new.path), new)

    def forget_unneeded(self) -> None:
        """Drops copies that nobody can continue any more."""
        self._copies = [one for one in self._copies if one.needed]

    def keep(self, checkpoints: Checkpoints, *, first: bool) -> None:
        """Journals from now on in a file, too; the `first` one stands for the run."""
        if self.main is not None and self.main.path == checkpoints.path:
            self.main = checkpoints
        else:
            self._copies = [one for one in self._copies if one.path != checkpoints.path]
            if first:
                self._copies, self.main = self._all(), checkpoints
            else:
                self._copies.append(checkpoints)
        self._use_journals([one.journal for one in self._all()])

    def _all(self) -> list[Checkpoints]:
        return [*([] if self.main is None else [self.main]), *self._copies]
