"""`adamas federated run` and `adamas federated blocks`: many clients, whose data never leaves them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display

from adamas import _validate
from adamas.cli.app import Json, app, assignments, print_json, print_rows, shown_bound
from adamas.cli.options import takes_run_options
from adamas.data import DATASETS
from adamas.federated import ALGORITHMS
from adamas.federated.accounting import UNITS
from adamas.models import MODELS
from adamas.run.options import SharedOptions

federated = typer.Typer(
    name="federated", help="Training over many clients, whose data never leaves them.", no_args_is_help=True
)
app.add_typer(federated)

_BACKENDS = ("flower", "process")

Data = Annotated[str, typer.Option(help=f"One of: {', '.join(DATASETS)}; spread over the clients.")]
Model = Annotated[str, typer.Option(help=f"One of: {', '.join(MODELS)}.")]
TaskModule = Annotated[
    str, typer.Option(help="Instead of --data and --model: a Python module; see adamas.federated.Task.")
]


@federated.command()
@takes_run_options(
    SharedOptions,
    texts={
        "batch_size": "Expected batch size of a local step.",
        "clip_norm": "Radius to which an example's gradient is clipped, or a client's update.",
    },
    batch_size=16,
    delta=1e-5,
)
def run(
    clients: Annotated[int, typer.Option(help="Number of clients.")],
    rounds: Annotated[int, typer.Option(help="Number of rounds.")],
    local_steps: Annotated[int, typer.Option(help="Steps of a client in a round.")],
    algorithm: Annotated[str, typer.Option(help=f"One of: {', '.join(ALGORITHMS)}.")] = "dp-fedadamw",
    data: Data = "",
    model: Model = "",
    task: TaskModule = "",
    participation: Annotated[float, typer.Option(help="Share of the clients in a round.")] = 1.0,
    dirichlet: Annotated[
        float, typer.Option(help="Similarity of the clients' labels: 0.1 few classes each, 100 all.")
    ] = 0.6,
    least_examples: Annotated[
        int | None, typer.Option(help="Fewest examples of a client; the batch size if not given.")
    ] = None,
    equal_sizes: Annotated[
        bool, typer.Option("--equal-sizes", help="The same number of examples for each client.")
    ] = False,
    unit: Annotated[
        str, typer.Option(help=f"Whose influence is protected, one of: {', '.join(UNITS)}.")
    ] = "record",
    count_on_participation: Annotated[
        bool,
        typer.Option(
            "--count-on-participation",
            help="Let the random choice of clients, which nobody may know, count for a record's privacy.",
        ),
    ] = False,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the local steps.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: any other argument of the algorithm.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="flower: its simulation; process: one client after the other.")
    ] = "flower",
    timeout: Annotated[float, typer.Option(help="Seconds for the clients of a round to reply.")] = 3600.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; one with a begun training is continued.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a model over many clients on this machine, with an epsilon for each of them."""
    from adamas.federated.settings import FederatedSettings

    _validate.one_of(ALGORITHMS, algorithm=algorithm)
    _validate.one_of(_BACKENDS, backend=backend)
    _validate.positive(timeout=timeout)
    known = [one.name for one in fields(ALGORITHMS[algorithm]) if one.name != "blocks"]
    settings = FederatedSettings(
        algorithm=algorithm,
        algorithm_options=assignments(known, set_ or [], lr),
        task=task,
        data=data,
        dirichlet=dirichlet,
        least_examples=least_examples,
        equal_sizes=equal_sizes,
        model=model,
        clients=clients,
        participation=participation,
        rounds=rounds,
        local_steps=local_steps,
        unit=unit,
        count_on_participation=count_on_participation,
        **options,
    )
    _make_importable(task)
    if out is None:
        out = Path("runs") / f"{algorithm}-{datetime.now():%Y%m%d-%H%M%S}"
    with _rounds(rounds) as show:
        result = _train(settings, out, backend, timeout, show)
    if as_json:
        print_json(result)
        return
    console = Console(highlight=False)
    style = "" if result["private"] else "[bold red]"
    console.print(f"{style}{result['privacy']}", soft_wrap=True)
    paid = f"(delta {settings.delta:g}, {settings.accountant})"
    console.print(f"epsilon         {shown_bound(result['epsilon'])}  {paid}")
    if result["test_accuracy"] is not None:
        console.print(f"test accuracy   {result['test_accuracy']:.2%}")
    console.print(f"files           {out}", soft_wrap=True)


def _make_importable(task: str) -> None:
    """Makes modules of the current folder importable, also in the processes of a simulation."""
    if task:
        here = os.getcwd()
        sys.path.insert(0, here)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


def _train(
    settings: Any, out: Path, backend: str, timeout: float, show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    if backend == "process":
        from adamas.federated.task import make_task
        from adamas.federated.training import train_in_process

        return train_in_process(settings, make_task(settings), out, progress=show)
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            "Flower's simulation is not installed. Run: pip install 'adamas[federated]', or give "
            "--backend process."
        ) from error
    from adamas.federated.flower.simulation import simulate

    return simulate(settings, out, timeout=timeout, progress=show)


@federated.command()
def blocks(
    data: Data = "",
    model: Model = "",
    task: TaskModule = "",
    as_json: Json = False,
) -> None:
    """Show which parameters share a second moment in dp-fedadamw, and the size of an upload."""
    from adamas.federated import Blocks
    from adamas.federated.settings import FederatedSettings
    from adamas.federated.task import make_task

    settings = FederatedSettings(
        task=task,
        data=data,
        model=model,
        clients=1,
        rounds=1,
        local_steps=1,
        batch_size=1,
        noise_multiplier=1.0,
        delta=1e-5,
    )
    _make_importable(task)
    chosen = make_task(settings)
    made = chosen.make_model()
    found = list(chosen.make_blocks(made) or Blocks.of(made))
    numbers = sum(block.coordinates for block in found)
    if as_json:
        blocks = [{"name": block.name, "coordinates": block.coordinates} for block in found]
        print_json({"blocks": blocks, "upload": numbers + len(found), "coordinate_wise": 2 * numbers})
        return
    print_rows(["block", "coordinates"], [[block.name, f"{block.coordinates:,}"] for block in found])
    print(
        f"an upload: {numbers:,} parameters + {len(found)} blocks = {numbers + len(found):,} numbers "
        f"(coordinate-wise second moments: {2 * numbers:,})"
    )


@contextmanager
def _rounds(total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows progress: a bar on a terminal, a line for each round elsewhere."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Display(*columns, console=console, disable=not console.is_terminal) as display:
        bar = display.add_task("", total=total)

        def show(line: dict[str, Any]) -> None:
            display.update(bar, completed=line["round"])
            words = [f"round {line['round']}/{total}"]
            if "answered" in line:
                words.append(f"{len(line['answered'])} clients")
            words += [f"client {client} left out: {why}" for client, why in line.get("left_out", {}).items()]
            if "test_accuracy" in line:
                words.append(f"test accuracy {line['test_accuracy']:.2%}")
            if "seconds" in line:
                words.append(f"{line['seconds']:.1f} s")
            console.print("; ".join(words), markup=False, soft_wrap=True)

        yield show
