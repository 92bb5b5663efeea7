"""The command line: `adamas train | sweep | check | audit | federated | reproduce | report | ...`.

Each family of commands has a file; `app` and `options` are shared. Slow imports are inside the commands, so
that the calculators start fast.
"""

import sys

import typer

from adamas.cli.app import app
from adamas.cli.messages import on_the_command_line

# isort: off
# In the order of the commands in the help.
from adamas.cli import training, suggestions, table_options, budgets, checks  # noqa: F401
from adamas.cli import federated, tables, calculators  # noqa: F401
# isort: on


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; an error is one line on standard error and exit code 2."""
    try:
        code = app(arguments, standalone_mode=False)
    except _UsageError as error:
        code = _complain(error.format_message())  # type: ignore[attr-defined]
    except MemoryError:
        code = _complain("out of memory; with so little noise, try --accountant rdp")
    except (ValueError, TypeError, RuntimeError, OSError, ArithmeticError) as error:
        code = _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = _complain("interrupted")
    sys.exit(code or 0)


# typer's errors of usage share this base, whichever click it is built on.
_UsageError: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"
)


def _complain(message: str) -> int:
    if not message:  # help was asked for by giving no argument
        return 0
    print(f"adamas: error: {on_the_command_line(message)}", file=sys.stderr)
    return 2
