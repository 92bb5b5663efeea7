"""Rewrites error messages for the command line: with its flags, in one line."""

import re

FLAGS = ("allow_large_delta", "classes", "resume", "target_bounds", "test_file", "test_fraction")
"""Arguments that messages of the library recommend, and that are flags of a command."""

_ASSIGNED = re.compile(rf"\b({'|'.join(FLAGS)})=(?:(True)|'([^']*)'|([-+\d][-+.e\d]*(?<!\.)))")
_MISSING = re.compile(r"\[Errno 2\] No such file or directory: '(.*)'", re.DOTALL)


def on_the_command_line(message: str) -> str:
    """Returns a message in one line that names flags instead of arguments, and files that are missing.

    Example:
        >>> on_the_command_line("Lower delta, or confirm it with allow_large_delta=True.")
        'Lower delta, or confirm it with --allow-large-delta.'
        >>> on_the_command_line("[Errno 2] No such file or directory: 'a.csv'")
        'Expected a file a.csv, found none.'
    """
    missing = _MISSING.fullmatch(message)
    if missing is not None:
        message = f"Expected a file {missing[1]}, found none."
    return " ".join(_ASSIGNED.sub(_flag, message).split())


def _flag(found: re.Match[str]) -> str:
    name, true, text, number = found.groups()
    value = "" if true else f" {text or number}"
    return f"--{name.replace('_', '-')}{value}"
