"""The run that nothing interrupted, to compare interrupted ones with."""

from tests.support.small_runs import finish, make_run


def make_finished():
    """Makes the small run with its default options, and trains it to the end."""
    run = make_run()
    finish(run)
    return run
