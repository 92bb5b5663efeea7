"""Messages of the library name flags on the command line."""

import pytest
import typer

from adamas.cli import app
from adamas.cli.messages import FLAGS, on_the_command_line


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("confirm with allow_large_delta=True.", "confirm with --allow-large-delta."),
        ("Give classes='public' if so.", "Give --classes public if so."),
        ("Expected test_fraction=1.5 to", "Expected --test-fraction 1.5 to"),
        ("Expected 0 < test_fraction=2.", "Expected 0 < --test-fraction 2."),
        ("Give classes=[...] or epsilon=3", "Give classes=[...] or epsilon=3"),
        ("Give my_classes='public'", "Give my_classes='public'"),
        ("[Errno 2] No such file or directory: 'a b.csv'", "Expected a file a b.csv, found none."),
        ("two\n  lines", "two lines"),
    ],
)
def test_python_becomes_flags(message, words):
    assert on_the_command_line(message) == words


def test_every_argument_is_a_flag_of_training():
    train = typer.main.get_command(app).commands["train"]
    names = {flag for parameter in train.params for flag in parameter.opts}
    assert {f"--{name.replace('_', '-')}" for name in FLAGS} <= names
