"""Shared by tests: helpers of `command_line`."""

import pytest

from adamas.cli import main


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err
