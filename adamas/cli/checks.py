"""`adamas check` and `adamas audit`: privacy checks of the user's own run."""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from adamas import PrivateRun
from adamas._words import rounded_up
from adamas.cli.app import Json, app, print_json, print_rows

Function = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="A Python function, seen from the current folder, that returns a fresh adamas.PrivateRun.",
    ),
]
Progress = Annotated[bool | None, typer.Option(help="Show a progress bar; on a terminal if not given.")]


@app.command()
def check(
    function: Function,
    examples: Annotated[int, typer.Option(help="Examples of a batch to examine one by one.")] = 8,
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Check a run of your own on neighbouring data sets: sensitivity, noise, records, model."""
    from adamas.check import FAIL, check

    rows = check(loaded_function(function), examples=examples, progress=progress)
    failed = any(row.verdict == FAIL for row in rows)
    if as_json:
        print_json({"verdict": FAIL if failed else "pass", "rows": [asdict(row) for row in rows]})
    else:
        print_rows(
            ["check", "verdict", "what was seen, and the remedy"],
            [[row.name, row.verdict, f"{row.seen}. {row.remedy}".strip()] for row in rows],
        )
    if failed:
        raise typer.Exit(1)


@app.command()
def audit(
    function: Function,
    canaries: Annotated[
        int | None, typer.Option(help="Number of canaries; up to 1000, by data and model, if not given.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Probability that the bound holds.")] = 0.95,
    steps: Annotated[int | None, typer.Option(help="Steps to watch; all of the run if not given.")] = None,
    runs: Annotated[int, typer.Option(help="Runs whose canaries count together.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of the canaries; drawn if not given.")] = None,
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Attack a run of your own with canaries: a lower bound on its epsilon, next to its claim."""
    from adamas.audit.one_run import audit

    result = audit(
        loaded_function(function),
        canaries=canaries,
        confidence=confidence,
        steps=steps,
        runs=runs,
        seed=seed,
        progress=progress,
    )
    if as_json:
        print_json(asdict(result) | {"verdict": result.verdict})
    else:
        print_rows(
            ["", ""],
            [
                ["verdict", f"{result.verdict}: {_MEANING[result.verdict]}"],
                ["lower bound", f"epsilon >= {result.lower_bound:.2f}, with confidence {confidence:g}"],
                ["claimed", f"epsilon <= {rounded_up(result.claimed)}, at delta {result.delta:g}"],
                [
                    "of it",
                    f"{result.any_mechanism:.2f} for any mechanism, {result.gaussian:.2f} for Gaussians",
                ],
                ["guesses", f"{result.correct} of {result.guesses} right, {result.canaries} canaries"],
                ["watched", f"{result.steps} steps of {result.runs} run{'s' * (result.runs > 1)}"],
                ["method", result.method],
            ],
        )
    if result.verdict == "fail":
        raise typer.Exit(1)


_MEANING = {
    "pass": "the attack refutes nothing, and would have seen a run without noise",
    "fail": "the run is less private than it says",
    "out of reach": "the attack refutes nothing, but it could not have; give more canaries or --runs",
}


def loaded_function(text: str) -> Callable[[], PrivateRun]:
    """Imports the function that MODULE:FUNCTION names; modules of the current folder come first."""
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name or module_name.endswith(".py"):
        raise ValueError(f"Expected MODULE:FUNCTION, such as my_module:make_run, got {text!r}.")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"Expected {module_name!r} to be a Python module of this folder or an installed one: {error}."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"Expected {module_name!r} to define a function {name!r}.")
    made: Callable[[], PrivateRun] = function
    return made
