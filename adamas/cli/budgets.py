"""`adamas sweep` and `adamas ledger`: several runs on one data set, and their total cost."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adamas._words import limit
from adamas.cli.app import DataName, Json, ModelName, app, print_json, print_rows, shown_bound
from adamas.cli.options import takes_run_options
from adamas.cli.training import RuleName, rule_options
from adamas.run.options import TrainingOptions

ledger = typer.Typer(help="The budget of a data set, and how much of it is spent.", no_args_is_help=True)
app.add_typer(ledger, name="ledger")

LedgerPath = Annotated[Path, typer.Argument(help="The ledger, such as data.ledger.")]

_ONE_BUDGET = "a sweep calibrates the noise of all runs to one epsilon"
_POISSON = "the accounting of a choice is for Poisson sampling"
_SAME_RESULT = "it does not change the result of a candidate"
_LATER = "for the training that follows with the chosen values, by `adamas train`"

NOT_OF_A_SWEEP = {
    "noise_multiplier": _ONE_BUDGET,
    "max_epsilon": _ONE_BUDGET,
    "sampling": _POISSON,
    "max_batch_size": _POISSON,
    "engine": _SAME_RESULT,
    "micro_batch_size": _SAME_RESULT,
    "noise": _LATER,
    "ema": _LATER,
    "allow_large_delta": "publishing a random record would count as private",
    "raw": "a run with raw moments is not private",
}
"""Options of a training that `adamas sweep` leaves out, and why."""


@app.command()
@takes_run_options(
    TrainingOptions,
    without=NOT_OF_A_SWEEP,
    texts={
        "epochs": "Passes of each run; or give --steps.",
        "seed": "Reproducible, with different noise in each run; whoever knows it can remove it.",
    },
    batch_size=256,
    delta=1e-5,
)
def sweep(
    try_: Annotated[
        list[str], typer.Option("--try", help="NAME=V1,V2,...: values of an argument of the rule.")
    ],
    epsilon: Annotated[float, typer.Option(help="Budget of all runs together.")],
    data: DataName = "digits/validation",
    model: ModelName = "mlp",
    rule: RuleName = "adam-bc",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: any other argument of the rule.")
    ] = None,
    schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "constant",
    selection: Annotated[
        str, typer.Option(help="all: every run counts and may be shown; best: only the best may be shown.")
    ] = "all",
    mean_runs: Annotated[
        float | None, typer.Option(help="For best: runs on average; the number of candidates if not given.")
    ] = None,
    data_ledger: Annotated[
        Path | None, typer.Option(help="Ledger of the data set, whose budget pays for the runs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs and sweep.json; one sweep each.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Try hyperparameters within one budget, and account for the choice."""
    from adamas.experiment import sweep as sweeping
    from adamas.experiment.training import Settings

    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=rule_options(rule, set_),
        epsilon=epsilon,
        schedule=schedule,
        **options,
    )
    tried: dict[str, list[Any]] = {}
    for text in try_:
        name, _, values = text.partition("=")
        tried[name] = [rule_options(rule, [f"{name}={value}"])[name] for value in values.split(",")]
    if out is None:
        out = Path("runs") / f"sweep-{data.replace('/', '-')}-{rule}-{datetime.now():%Y%m%d-%H%M%S}"
    columns = (TextColumn("runs"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=as_json) as display:
        task = display.add_task("", total=None)
        result = sweeping.sweep(
            settings,
            tried,
            out,
            selection=selection,
            mean_runs=mean_runs,
            data_ledger=data_ledger,
            progress=lambda done, total: display.update(task, completed=done, total=total),
        )
    if as_json:
        print_json(result)
        return
    if "runs" in result:
        print_rows(
            ["run", *tried, "held out"],
            [
                [run["folder"], *map(str, run["tried"].values()), f"{run['accuracy']:.2%}"]
                for run in result["runs"]
            ],
        )
    best = result["best"]
    console = Console(highlight=False)
    words = ", ".join(f"{name}={value}" for name, value in best["tried"].items())
    console.print(f"best            {words}  (held out {best['accuracy']:.2%})", soft_wrap=True)
    console.print(f"epsilon         {shown_bound(result['epsilon'])}  (delta {settings.delta:g})")
    console.print(f"accounting      {result['accounting']}", soft_wrap=True)
    console.print(f"files           {out}/{best['folder']}, sweep.json", soft_wrap=True)


@ledger.command()
@takes_run_options(only=["delta", "accountant"], delta=1e-5)
def create(
    path: LedgerPath,
    epsilon: Annotated[float, typer.Option(help="Budget of all runs on the data set.")],
    **options: Any,
) -> None:
    """Make the ledger of a data set, with a budget for all runs on it."""
    from adamas.accounting.data_ledger import DataLedger

    DataLedger.create(path, epsilon=epsilon, **options)
    print(f"{path}: a budget of epsilon {limit(epsilon)} at delta {options['delta']:g}, nothing spent.")


@ledger.command()
def show(path: LedgerPath, as_json: Json = False) -> None:
    """Show how much of a data set's budget is spent, and by which runs."""
    from adamas.accounting.data_ledger import DataLedger

    found = DataLedger(path)
    accounts = found.spendings()
    spent = found.epsilon()
    if as_json:
        print_json(
            {
                "epsilon": spent,
                "budget": found.budget,
                "delta": found.delta,
                "accountant": found.accountant,
                "runs": [
                    asdict(one) | {"entries": [[str(e), n] for e, n in one.entries]} for one in accounts
                ],
            }
        )
        return
    rows = [
        [
            one.id[:8],
            "finished" if one.finished else "reserved",
            shown_bound(found.epsilon_of(one)),
            one.title,
        ]
        for one in accounts
    ]
    if rows:
        print_rows(["run", "", "epsilon", "what"], rows)
    print(
        f"spent           {shown_bound(spent)} of {limit(found.budget)}  (delta {found.delta:g}, "
        f"{found.accountant}, {len(accounts)} runs together)"
    )
