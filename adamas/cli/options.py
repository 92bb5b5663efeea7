"""Gives commands the options of a run, from the fields of `RunOptions` that have a text for the help."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, TypeVar

import typer

from adamas.run.options import COMMAND_TYPE, HELP, RunOptions, TrainingOptions

Command = TypeVar("Command", bound=Callable[..., None])


def run_options() -> list[Field[Any]]:
    """Returns the options of a run that the command line takes."""
    return [one for one in fields(RunOptions) if HELP in one.metadata]


def takes_run_options(**defaults: Any) -> Callable[[Command], Command]:
    """Lets a command with a parameter `**options` take all options of a run.

    Args:
        defaults: Defaults of options that have none, or another one on the command line.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = [_parameter(one, defaults) for one in run_options()]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own] + taken
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return decorate


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options of a run into those that `Settings` holds and the others."""
    names = {one.name for one in fields(TrainingOptions)}
    held = {name: value for name, value in options.items() if name in names}
    return held, {name: value for name, value in options.items() if name not in names}


def _parameter(one: Field[Any], defaults: dict[str, Any]) -> inspect.Parameter:
    default = defaults.get(one.name, one.default)
    assert default is not MISSING, f"Expected a default for --{one.name} on the command line."
    kind = one.metadata.get(COMMAND_TYPE, one.type)
    annotation = Annotated[kind, typer.Option(help=one.metadata[HELP])]  # type: ignore[valid-type]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
