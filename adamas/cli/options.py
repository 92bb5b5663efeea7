"""Gives commands the options of a run, from the fields of its options that have a text for the help."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, TypeVar

import typer

from adamas.run.options import COMMAND_TYPE, HELP, RunOptions, SharedOptions, TrainingOptions

Command = TypeVar("Command", bound=Callable[..., None])


def run_options(kind: type[SharedOptions] = RunOptions) -> list[Field[Any]]:
    """Returns the options of a class that the command line takes."""
    return [one for one in fields(kind) if HELP in one.metadata]


def takes_run_options(
    kind: type[SharedOptions] = RunOptions,
    *,
    only: Collection[str] | None = None,
    without: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
    **defaults: Any,
) -> Callable[[Command], Command]:
    """Lets a command with a parameter `**options` take the options of a run that it does not declare itself.

    Args:
        kind: The class of the options.
        only: The names of those that the command takes; None for all.
        without: Names that it leaves out, with the reason.
        texts: Help of options that mean something else in this command.
        defaults: Defaults of options that have none, or another one in this command.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        absent = {p.name for p in own} | (without or {}).keys()
        taken = [
            _parameter(one, (texts or {}).get(one.name, one.metadata[HELP]), defaults)
            for one in run_options(kind)
            if one.name not in absent and (only is None or one.name in only)
        ]
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


def _parameter(one: Field[Any], text: str, defaults: dict[str, Any]) -> inspect.Parameter:
    default = defaults.get(one.name, one.default)
    assert default is not MISSING, f"Expected a default for --{one.name} on the command line."
    kind = one.metadata.get(COMMAND_TYPE, one.type)
    annotation = Annotated[kind, typer.Option(help=text)]  # type: ignore[valid-type]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
