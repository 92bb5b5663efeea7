"""`adamas epsilon`, `adamas noise` and `adamas steps`: the cost of a run, without running it."""

import math
from typing import Annotated, Any

import typer

from adamas.accounting import calibrate
from adamas.cli.app import Accountant, Delta, Json, app, print_json, shown_bound

Rate = Annotated[float | None, typer.Option(help="Sampling rate; or give --batch-size and --dataset-size.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected batch size.")]
DatasetSize = Annotated[int | None, typer.Option(help="Number of examples.")]


@app.command("epsilon")
def epsilon_command(
    noise_multiplier: Annotated[float, typer.Option(help="Noise relative to the sensitivity.")],
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps; or give --epochs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data, with the sizes.")] = None,
    delta: Delta = 1e-5,
    accountant: Accountant = "pld",
    as_json: Json = False,
) -> None:
    """Compute epsilon from noise multiplier, sampling rate and steps."""
    q = _rate(sampling_rate, batch_size, dataset_size)
    count = _steps(steps, epochs, batch_size, dataset_size)
    answer = calibrate.epsilon(
        noise_multiplier=noise_multiplier, sampling_rate=q, steps=count, delta=delta, accountant=accountant
    )
    settings = {"noise_multiplier": noise_multiplier, "sampling_rate": q, "steps": count, "delta": delta}
    _answer(as_json, accountant, settings, epsilon=answer)


@app.command("noise")
def noise_command(
    epsilon: Annotated[float, typer.Option(help="Budget.")],
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps; or give --epochs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data, with the sizes.")] = None,
    delta: Delta = 1e-5,
    accountant: Accountant = "pld",
    as_json: Json = False,
) -> None:
    """Compute the noise multiplier for epsilon, sampling rate and steps."""
    q = _rate(sampling_rate, batch_size, dataset_size)
    count = _steps(steps, epochs, batch_size, dataset_size)
    answer = calibrate.noise_multiplier(
        epsilon=epsilon, delta=delta, sampling_rate=q, steps=count, accountant=accountant
    )
    settings = {"epsilon": epsilon, "sampling_rate": q, "steps": count, "delta": delta}
    _answer(as_json, accountant, settings, noise_multiplier=answer)


@app.command("steps")
def steps_command(
    epsilon: Annotated[float, typer.Option(help="Budget.")],
    noise_multiplier: Annotated[float, typer.Option(help="Noise relative to the sensitivity.")],
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    delta: Delta = 1e-5,
    accountant: Accountant = "pld",
    as_json: Json = False,
) -> None:
    """Compute the number of steps that epsilon pays for, from noise multiplier and sampling rate."""
    q = _rate(sampling_rate, batch_size, dataset_size)
    answer = calibrate.steps(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=q,
        accountant=accountant,
    )
    settings = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "sampling_rate": q, "delta": delta}
    _answer(as_json, accountant, settings, steps=answer)


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


def _answer(as_json: bool, accountant: str, settings: dict[str, Any], **answer: float) -> None:
    if as_json:
        print_json(answer | settings | {"accountant": accountant})
        return
    for name, value in answer.items():
        # A noise multiplier has four decimals already; the others are bounds or whole.
        print(f"{name.replace('_', ' ')} {shown_bound(value) if name == 'epsilon' else _number(value)}")


def _number(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
