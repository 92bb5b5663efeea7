"""Read the journal of a checkpoint."""

from adamas.accounting.journal import Journal, _records


def journaled(file):
    """Returns the releases in the journal of the checkpoint `file`, as one list for each process."""
    path = Journal(file).path
    return _records(path.read_bytes(), path)[0]
