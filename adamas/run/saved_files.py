"""The checkpoint files of a run, each of which journals the releases that follow it.

The files of all runs that continue one another form a lineage. A run journals its releases beside each
existing file of its lineage, so that any of them can be continued later: see `adamas.run.siblings`.
"""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from adamas.accounting.journal import Journal
from adamas.run.checkpoint import Checkpoints
from adamas.run.siblings import siblings_of, write_siblings


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
        self._listed: list[Path] = []
        self.lineage = uuid4().hex if main is None else main.journal.lineage

    @property
    def every(self) -> int | None:
        """Steps between automatic checkpoints; None for none."""
        return self.main.every if self.main is not None else None

    def at(self, path: str | Path) -> Checkpoints:
        """Returns the file at a path: one that the run was saved in before, or a new one."""
        new = Checkpoints(path, self.every)
        found = next((one for one in self._all() if one.path == new.path), new)
        found.journal.lineage = self.lineage
        return found

    def announce(self, path: Path) -> None:
        """Lists a file that is about to be written beside all others, and the others beside it."""
        paths = [*(one.path for one in self._all() if one.needed), path]
        paths = sorted(dict.fromkeys(paths))
        if paths != self._listed and (len(paths) > 1 or self._listed):
            write_siblings(paths)
            self._listed = paths

    def adopt(self, checkpoints: Checkpoints) -> None:
        """Takes over the journals of all files in the lineage of a loaded file.

        Raises:
            RuntimeError: If another process writes one of them.
        """
        self.lineage = checkpoints.journal.lineage
        for path in siblings_of(checkpoints.path):
            sibling = Checkpoints(path)
            token = sibling.journal.token()
            if token is None or sibling.journal.lineage_on_disk() != self.lineage or sibling.journal.goes_on:
                continue  # of another run by now, or of one that is alive and writes it itself
            try:
                sibling.journal.read(token)
            except ValueError:  # damaged, so that nobody can continue its file
                continue
            self.keep(sibling, first=False)

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
        journals = [one.journal for one in self._all()]
        for journal in journals:
            journal.first = None if journal is journals[0] else journals[0]
        self._use_journals(journals)

    def _all(self) -> list[Checkpoints]:
        return [*([] if self.main is None else [self.main]), *self._copies]
