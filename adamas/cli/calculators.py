"""`adamas epsilon`, `adamas noise` and `adamas steps`: the cost of a run, without running it."""

import math
from typing import Annotated, Any

import typer

from adamas.accounting import calibrate
from adamas.cli.app import Json, app, print_json, shown_bound
from adamas.cli.options import takes_run_options

Rate = Annotated[float | None, typer.Option(help="Sampling rate; or give --batch-size and --dataset-size.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected batch size.")]
DatasetSize = Annotated[int | None, typer.Option(help="Number of examples.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps; or give --epochs.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data, with the sizes.")]
Noise = Annotated[float, typer.Option(help="Noise relative to the sensitivity.")]
Budget = Annotated[float, typer.Option(help="Budget.")]

_guaranteed = takes_run_options(only=["delta", "accountant"], delta=1e-5)


@app.command("epsilon")
@_guaranteed
def epsilon_command(
    noise_multiplier: Noise,
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    steps: Steps = None,
    epochs: Epochs = None,
    as_json: Json = False,
    **guarantee: Any,
) -> None:
    """Compute epsilon from noise multiplier, sampling rate and steps."""
    given = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": _rate(sampling_rate, batch_size, dataset_size),
        "steps": _steps(steps, epochs, batch_size, dataset_size),
        **guarantee,
    }
    _answer(as_json, given, epsilon=calibrate.epsilon(**given))


@app.command("noise")
@_guaranteed
def noise_command(
    epsilon: Budget,
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    steps: Steps = None,
    epochs: Epochs = None,
    as_json: Json = False,
    **guarantee: Any,
) -> None:
    """Compute the noise multiplier for epsilon, sampling rate and steps."""
    given = {
        "epsilon": epsilon,
        "sampling_rate": _rate(sampling_rate, batch_size, dataset_size),
        "steps": _steps(steps, epochs, batch_size, dataset_size),
        **guarantee,
    }
    _answer(as_json, given, noise_multiplier=calibrate.noise_multiplier(**given))


@app.command("steps")
@_guaranteed
def steps_command(
    epsilon: Budget,
    noise_multiplier: Noise,
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    as_json: Json = False,
    **guarantee: Any,
) -> None:
    """Compute the number of steps that epsilon pays for, from noise multiplier and sampling rate."""
    given = {
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "sampling_rate": _rate(sampling_rate, batch_size, dataset_size),
        **guarantee,
    }
    _answer(as_json, given, steps=calibrate.steps(**given))


def _rate(rate: float | None, batch_size: int | None, dataset_size: int | None) -> float:
    if (batch_size is None) != (dataset_size is None) or (rate is None) == (batch_size is None):
        raise ValueError("Expected --sampling-rate, or --batch-size and --dataset-size together.")
    if rate is not None:
        return rate
    assert batch_size is not None
    assert dataset_size is not None
    if not 0 < batch_size <= dataset_size:
        raise ValueError(f"Expected 0 < batch_size={batch_size} <= dataset_size={dataset_size}.")
    return batch_size / dataset_size


def _steps(steps: int | None, epochs: int | None, batch_size: int | None, dataset_size: int | None) -> int:
    if (steps is None) == (epochs is None):
        raise ValueError("Expected exactly one of --steps and --epochs.")
    if steps is not None:
        return steps
    if batch_size is None or dataset_size is None:
        raise ValueError("Expected --batch-size and --dataset-size with --epochs.")
    assert epochs is not None
    return epochs * math.ceil(dataset_size / batch_size)


def _answer(as_json: bool, given: dict[str, Any], **answer: float) -> None:
    if as_json:
        print_json(answer | given)
        return
    for name, value in answer.items():
        # A noise multiplier has four decimals already; the others are bounds or whole.
        print(f"{name.replace('_', ' ')} {shown_bound(value) if name == 'epsilon' else _number(value)}")


def _number(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
