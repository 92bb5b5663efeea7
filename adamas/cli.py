"""The command line: `adamas train | reproduce | report | explain | epsilon | noise | steps`."""

import ast
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display
from rich.table import Table

import adamas
from adamas import calibrate
from adamas._words import rounded_up
from adamas.data import DATASETS, VALIDATION
from adamas.engines import ENGINES
from adamas.ledger import ACCOUNTANTS
from adamas.models import MODELS
from adamas.rules import RULES
from adamas.sampling import SAMPLERS

if TYPE_CHECKING:
    from adamas.reproduce import Progress

app = typer.Typer(
    name="adamas",
    help="Differentially private training with adaptive optimizers, and a true epsilon.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DataName = Annotated[
    str, typer.Option(help=f"One of: {', '.join(DATASETS)}; NAME/validation holds training examples out.")
]
ModelName = Annotated[str, typer.Option(help=f"One of: {', '.join(MODELS)}.")]
RuleName = Annotated[str, typer.Option(help=f"One of: {', '.join(RULES)}.")]
EngineName = Annotated[str, typer.Option(help=f"auto, or one of: {', '.join(ENGINES)}.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Delta = Annotated[float, typer.Option(help="The delta of the guarantee.")]
Accountant = Annotated[str, typer.Option(help=f"One of: {', '.join(ACCOUNTANTS)}.")]
Rate = Annotated[float | None, typer.Option(help="Sampling rate; or give --batch-size and --dataset-size.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected batch size.")]
DatasetSize = Annotated[int | None, typer.Option(help="Number of examples.")]


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
    print(f"adamas: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _version(asked: bool) -> None:
    if asked:
        print(adamas.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    data: DataName = "digits",
    model: ModelName = "mlp",
    rule: RuleName = "adam-bc",
    epsilon: Annotated[float | None, typer.Option(help="Budget; or give --noise-multiplier.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Or give --epsilon.")] = None,
    delta: Delta = 1e-5,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or give --epochs.")] = None,
    batch_size: Annotated[int, typer.Option(help="Expected batch size.")] = 256,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the rule's default if not given.")] = None,
    clip_norm: Annotated[float, typer.Option(help="Radius to which an example's gradient is clipped.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible; whoever knows it can remove the noise.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: any other argument of the rule.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="How the learning rate falls: constant, linear or cosine.")
    ] = "constant",
    ema: Annotated[float | None, typer.Option(help="Decay of an average of the weights, the result.")] = None,
    engine: EngineName = "auto",
    micro_batch_size: Annotated[int | None, typer.Option(help="Most examples at a time.")] = None,
    sampling: Annotated[str, typer.Option(help=f"One of: {', '.join(SAMPLERS)}.")] = "poisson",
    max_batch_size: Annotated[int | None, typer.Option(help="For truncated-poisson.")] = None,
    accountant: Accountant = "pld",
    allow_large_delta: Annotated[bool, typer.Option(help="Accept a delta of 1/N or more.")] = False,
    progress: Annotated[
        bool | None, typer.Option(help="Show a progress bar; on a terminal if not given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for result.json, model.safetensors and ledger.json.")
    ] = None,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Write diagnostics.jsonl: what the rule did, for free.")
    ] = False,
    diagnose_every: Annotated[
        int | None, typer.Option(help="Steps between its lines, at most 50 lines if not given.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Add moments without noise to them. NOT PRIVATE, for teaching.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a private model and write its result, weights and ledger."""
    # The import is late so that the calculators start without it.
    from adamas.experiment import Settings, train_and_save

    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=_assignments(rule, set_ or [], lr),
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        clip_norm=clip_norm,
        seed=seed,
        schedule=schedule,
        ema=ema,
        engine=engine,
        micro_batch_size=micro_batch_size,
        sampling=sampling,
        max_batch_size=max_batch_size,
        accountant=accountant,
        allow_large_delta=allow_large_delta,
        raw=raw,
    )
    if out is None:
        out = Path("runs") / f"{data.replace('/', '-')}-{model}-{rule}-{datetime.now():%Y%m%d-%H%M%S}"
    diagnose = diagnose or diagnose_every is not None
    result = train_and_save(
        settings, out, progress=progress, diagnose=diagnose, diagnose_every=diagnose_every
    )
    if as_json:
        _print_json(result)
        return
    console = Console(highlight=False)
    if not result["private"]:
        console.print(f"[bold red]NOT PRIVATE[/]     {result['privacy']}", soft_wrap=True)
    console.print(f"epsilon         {_bound(result['epsilon'])}  (delta {delta:g}, {accountant})")
    # The words stand below one another.
    name = "held out      " if data.endswith(VALIDATION) else "test accuracy "
    console.print(f"{name}  {result['test_accuracy']:.2%}")
    console.print(f"noise           {result['noise_multiplier']:g}  x clip norm {clip_norm:g}")
    console.print(f"steps           {result['steps']}  in {result['seconds']:.1f} s")
    files = ["result.json", "model.safetensors", "ledger.json"] + ["diagnostics.jsonl"] * diagnose
    console.print(f"files           {out}/{', '.join(files)}", soft_wrap=True)
    if seed is not None:
        console.print(f"note            {result['note']}", soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/TABLE; without it, the tables are listed.")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Some rows only, separated by commas.")] = None,
    columns: Annotated[str | None, typer.Option(help="Some columns only, separated by commas.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each cell; as the table says if not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, on one core each.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed of a few cells, for a first impression.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results.jsonl and README.md; beside the table if not given."),
    ] = None,
    experiments: Annotated[Path | None, typer.Option(help="Folder of the tables.")] = None,
) -> None:
    """Make a table of a paper: the runs that are missing, then the numbers beside the published ones."""
    from adamas.reproduce import commands

    folder = commands.experiments_folder(experiments)
    if name is None:
        _print_rows(["table", "finished runs", "what it shows"], commands.overview(folder))
        return
    place = commands.results_folder(folder, name, out)
    with _reproducing() as show:
        head, *body = commands.make_table(
            folder,
            name,
            place,
            rows=_listed(rows),
            columns=_listed(columns),
            seeds=seeds,
            jobs=jobs,
            quick=quick,
            progress=show,
        )
    _print_rows(head, body)
    print(f"page: {place / commands.PAGE}")


@app.command()
def report(
    what: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of `adamas train`, of a table's results, or of tables; ./experiments."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the first folder if not given.")
    ] = None,
) -> None:
    """Draw runs and tables of papers as one HTML page: privacy, numbers, settings, what the rules did."""
    from adamas.report import default_folder, write_report

    folders = what or [default_folder()]
    out = out or folders[0] / "report.html"
    for name in write_report(folders, out):
        print(f"NOT PRIVATE: {name}")
    print(out)


@app.command()
def explain(
    data: DataName = "digits",
    model: ModelName = "mlp",
    rule: RuleName = "adam-bc",
    batch_size: Annotated[int, typer.Option(help="Examples in a batch.")] = 256,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: an argument of the rule.")
    ] = None,
    engine: EngineName = "auto",
    as_json: Json = False,
) -> None:
    """Show which function uses each parameter, how its norms are taken, its share of time and memory."""
    from adamas.experiment import Settings, private_run, task

    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=_assignments(rule, set_ or [], None),
        batch_size=batch_size,
        noise_multiplier=1.0,
        delta=1e-5,
        steps=1,
        engine=engine,
    )
    _, trained, examples = task(settings)
    explanation = private_run(settings, trained, examples).explain()
    if as_json:
        _print_json(asdict(explanation))
    else:
        print(explanation)


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
    """What a run costs: the epsilon of noise, sampling rate and steps."""
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
    """How much noise a budget needs: the noise multiplier for epsilon, sampling rate and steps."""
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
    """How long a budget lasts: the number of steps for epsilon, noise and sampling rate."""
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


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _print_rows(head: list[str], rows: list[list[str]]) -> None:
    """A table on a terminal; a row of one text is a heading."""
    table = Table(*map(escape, head), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row), style="bold" if len(row) == 1 else None)
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


@contextmanager
def _reproducing() -> Iterator[Callable[["Progress"], None]]:
    """Shows how far the runs of a table are: a bar on a terminal, a line for each run elsewhere."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Display(
        *columns, TextColumn("{task.fields[words]}"), console=console, disable=not console.is_terminal
    ) as display:
        task = display.add_task("", total=None, words="")

        def show(progress: "Progress") -> None:
            words = "" if progress.left is None else f"about {_duration(progress.left)} left"
            display.update(task, total=progress.total, completed=progress.done, words=words)
            if (line := progress.last) is not None:
                name = f"{line['row']}, {line['column']}, seed {line['seed']}"
                result = f"{line['test_accuracy']:.2%} in {line['seconds']:.0f} s"
                console.print(f"{progress.done}/{progress.total}  {name}: {result}; {words}")

        yield show


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


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


def _assignments(rule: str, texts: list[str], lr: float | None) -> dict[str, Any]:
    """The rule's arguments out of NAME=VALUE texts, checked against its signature."""
    adamas._validate.one_of(RULES, rule=rule)
    known = [name for name in inspect.signature(RULES[rule]).parameters if name != "params"]
    options: dict[str, Any] = {} if lr is None else {"lr": lr}
    for text in texts:
        name, equals, value = text.partition("=")
        if name == "lr" and lr is not None:
            raise ValueError("Expected the learning rate once, by --lr or by --set lr=.")
        if not equals or name not in known:
            raise ValueError(f"Expected --set NAME=VALUE with NAME among {', '.join(known)}, got {text!r}.")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def _answer(as_json: bool, accountant: str, settings: dict[str, Any], **answer: float) -> None:
    if as_json:
        _print_json(answer | settings | {"accountant": accountant})
        return
    for name, value in answer.items():
        # A noise multiplier has four decimals already; the others are bounds or whole.
        print(f"{name.replace('_', ' ')} {_bound(value) if name == 'epsilon' else _number(value)}")


def _bound(value: float | str) -> str:
    return rounded_up(value, 4) if isinstance(value, float) else value


def _number(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _print_json(result: dict[str, Any]) -> None:
    # JSON has no infinity: without noise, epsilon is the text "inf".
    plain = {name: "inf" if value == math.inf else value for name, value in result.items()}
    print(json.dumps(plain, indent=2, allow_nan=False))
