"""Calls the command line within this process."""

import pytest

from adamas.cli import main


def call(capsys, *arguments):
    """Returns the exit code, the output and the errors of a command. Arguments may be paths or numbers.

    An exception other than `SystemExit` would show the user a traceback, so it fails the test.
    """
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err
