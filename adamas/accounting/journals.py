"""All journals of a run: the first is that of its last checkpoint, others belong to copies of it."""

from collections.abc import Sequence

from adamas.accounting.journal import Journal, Release


def write_ahead(journals: Sequence[Journal], releases: list[Release]) -> None:
    """Appends releases to all journals of a run, before they are made.

    Raises:
        RuntimeError: If another run of this process continues one of the checkpoints, with the same noise.
    """
    if releases[0].identity and any(journal.was_taken_over for journal in journals):
        raise RuntimeError(
            "Another run has loaded a checkpoint of this one, and draws the noise of the same seed: both "
            "would show how their sums differ. Go on with the other run."
        )
    for number, journal in enumerate(journals):
        if number == 0 or not journal.taken_over:  # a copy that was loaded is the other run's
            journal.append(releases)


def names_of(journals: Sequence[Journal]) -> list[str]:
    """Returns the names by which a data set's ledger knows the first journal; the latest comes first."""
    return [f"{one.path.resolve()}#{token}" for one in journals[:1] for token in one.tokens]


def name_of(journals: Sequence[Journal]) -> str | None:
    """Returns the name of the journal that says what the run releases; None if there is none."""
    return next(iter(names_of(journals)), None)
