"""`adamas epsilon`, `adamas noise` and `adamas steps`: the cost of a run, without running it."""

import math
from typing import Annotated, Any

import typer

from adamas.accounting import calibrate
from adamas.cli.app import Json, app, print_json, shown_bound
from adamas.cli.options import takes_run_options
from adamas.graphs import calibrate as nodes_calibrate

Rate = Annotated[float | None, typer.Option(help="Sampling rate; or give --batch-size and --dataset-size.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected batch size.")]
DatasetSize = Annotated[int | None, typer.Option(help="Number of examples.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps; or give --epochs.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data, with the sizes.")]
Noise = Annotated[float, typer.Option(help="Noise relative to the sensitivity.")]
Budget = Annotated[float, typer.Option(help="Budget.")]

Nodes = Annotated[int | None, typer.Option(help="For graphs: training nodes, with --max-degree.")]
MaxDegree = Annotated[
    int | None, typer.Option(help="For graphs: how many nodes receive the messages of a node.")
]
Hops = Annotated[int, typer.Option(help="For graphs: how many messages away a term reads.")]
Sampling = Annotated[str, typer.Option(help="For graphs: poisson or fixed-size.")]

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
    nodes: Nodes = None,
    max_degree: MaxDegree = None,
    hops: Hops = 1,
    sampling: Sampling = "poisson",
    as_json: Json = False,
    **guarantee: Any,
) -> None:
    """Compute epsilon from noise multiplier, sampling rate and steps."""
    kind, sampled = _sampled(sampling_rate, batch_size, dataset_size, nodes, max_degree, hops, sampling)
    given = {
        "noise_multiplier": noise_multiplier,
        "steps": _steps(steps, epochs, batch_size, dataset_size or nodes),
        **guarantee,
    }
    _answer(as_json, given | sampled, epsilon=kind.epsilon(**given, **sampled))


@app.command("noise")
@_guaranteed
def noise_command(
    epsilon: Budget,
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    steps: Steps = None,
    epochs: Epochs = None,
    nodes: Nodes = None,
    max_degree: MaxDegree = None,
    hops: Hops = 1,
    sampling: Sampling = "poisson",
    as_json: Json = False,
    **guarantee: Any,
) -> None:
    """Compute the noise multiplier for epsilon, sampling rate and steps."""
    kind, sampled = _sampled(sampling_rate, batch_size, dataset_size, nodes, max_degree, hops, sampling)
    given = {
        "epsilon": epsilon,
        "steps": _steps(steps, epochs, batch_size, dataset_size or nodes),
        **guarantee,
    }
    _answer(as_json, given | sampled, noise_multiplier=kind.noise_multiplier(**given, **sampled))


@app.command("steps")
@_guaranteed
def steps_command(
    epsilon: Budget,
    noise_multiplier: Noise,
    sampling_rate: Rate = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    nodes: Nodes = None,
    max_degree: MaxDegree = None,
    hops: Hops = 1,
    sampling: Sampling = "poisson",
    as_json: Json = False,
    **guarantee: Any,
) -> None:
    """Compute the number of steps that epsilon pays for, from noise multiplier and sampling rate."""
    given = {
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        **guarantee,
    }
    kind, sampled = _sampled(sampling_rate, batch_size, dataset_size, nodes, max_degree, hops, sampling)
    _answer(as_json, given | sampled, steps=kind.steps(**given, **sampled))


def _sampled(
    rate: float | None,
    batch_size: int | None,
    dataset_size: int | None,
    nodes: int | None,
    max_degree: int | None,
    hops: int,
    sampling: str,
) -> tuple[Any, dict[str, Any]]:
    """Returns the calculator of plain records or of nodes, and how its batches are drawn."""
    if nodes is None and max_degree is None:
        return calibrate, {"sampling_rate": _rate(rate, batch_size, dataset_size)}
    if nodes is None or max_degree is None or batch_size is None or rate or dataset_size:
        raise ValueError("Expected --nodes, --max-degree and --batch-size together, and no other sizes.")
    sizes = {"nodes": nodes, "batch_size": batch_size, "max_degree": max_degree, "hops": hops}
    return nodes_calibrate, sizes | {"sampling": sampling}


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
    if "max_degree" in given:  # the papers count noise in another unit
        z = (given | answer)["noise_multiplier"]
        unit = nodes_calibrate.published_unit(given["max_degree"], given["hops"])
        note = f"noise multiplier {z:g} clipping norms, {z / unit:g} in the papers' unit of {unit:g}"
        print(note)
    for name, value in answer.items():
        # A noise multiplier has four decimals already; the others are bounds or whole.
        print(f"{name.replace('_', ' ')} {shown_bound(value) if name == 'epsilon' else _number(value)}")


def _number(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
