"""`adamas train` and `adamas explain`: one model on one data set."""

import inspect
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adamas import _validate
from adamas.cli import table_options
from adamas.cli.app import DataName, Json, ModelName, app, assignments, print_json, shown_bound
from adamas.cli.options import split_options, takes_run_options
from adamas.data import DATASETS, VALIDATION
from adamas.models import MODELS
from adamas.rules import RULES

TrainedData = Annotated[
    str, typer.Option(help=f"A table: a .csv or .parquet file; or one of: {', '.join(DATASETS)}.")
]
RuleName = Annotated[str, typer.Option(help=f"One of: {', '.join(RULES)}.")]
_GIVEN = ("name", "input_shape", "classes")  # arguments that follow from other options
DataOption = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE: an option of the data set, such as split=random.")
]
ModelOption = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE: an option of the model, such as hidden=64.")
]
MaxDegree = Annotated[
    int | None, typer.Option(help="For graphs: how many nodes receive the messages of a node.")
]
Hops = Annotated[int | None, typer.Option(help="For graphs: how many messages away a term reads, 1 or 2.")]


@app.command()
@takes_run_options(batch_size=256, delta=1e-5)
def train(
    data: TrainedData = "digits",
    model: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(MODELS)}. Default: mlp, or linear for a table.")
    ] = None,
    rule: RuleName = "adam-bc",
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate. Default: the rule's, or that for tables."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: any other argument of the rule.")
    ] = None,
    data_option: DataOption = None,
    model_option: ModelOption = None,
    max_degree: MaxDegree = None,
    hops: Hops = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Learning rate: constant, linear or cosine. Default: constant, or linear for a table."
        ),
    ] = None,
    schema: table_options.Schema = None,
    target: table_options.Target = None,
    classes: table_options.Classes = None,
    target_bounds: table_options.TargetBounds = None,
    bounds: table_options.Bounds = None,
    categories: table_options.Categories = None,
    test_file: table_options.TestFile = None,
    test_fraction: table_options.TestFraction = None,
    count_unusable: Annotated[
        bool,
        typer.Option(
            "--count-unusable", help="First count training examples without a finite gradient. NOT PRIVATE."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for result.json, model.safetensors and ledger.json; one training each."),
    ] = None,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Write diagnostics.jsonl: how the rule behaved, at no privacy cost."),
    ] = False,
    diagnose_every: Annotated[
        int | None, typer.Option(help="Steps between its lines; at most 50 lines if not given.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a private model and write its result, weights and ledger."""
    # The import is late so that the calculators start without it.
    from adamas.experiment.tables import is_table, told
    from adamas.experiment.training import RESULT, Settings, train_and_save

    held, others = split_options(options)
    table, usual = table_options.defaults_for(
        table_options.TableFlags(
            schema, target, classes, target_bounds, bounds, categories, test_file, test_fraction
        ),
        *(data, rule),
        length=held["epochs"] is not None or held["steps"] is not None,
        lr=lr is not None or any(text.startswith("lr=") for text in set_ or []),
    )
    model = model or usual["model"]
    if table is None:
        sources = task_options(data, model, data_option, model_option, max_degree, hops)
    elif data_option or max_degree is not None or hops is not None:
        raise ValueError("Expected no --data-option, --max-degree or --hops for a table, got one.")
    else:
        sources = {"data_options": table, "model_options": model_options(model, model_option)}
    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=rule_options(rule, set_, usual.get("lr", lr)),
        **sources,
        schedule=schedule or usual["schedule"],
        **(held | ({"epochs": usual["epochs"]} if "epochs" in usual else {})),
    )
    resume = others["resume"]
    if resume and out is None:
        raise ValueError("Expected --out with --resume: the folder of the run to continue.")
    if out is None:
        stem = Path(data.removesuffix(VALIDATION)).stem if is_table(data) else data.replace("/", "-")
        out = Path("runs") / f"{stem}-{model}-{rule}-{datetime.now():%Y%m%d-%H%M%S}"
    diagnose = diagnose or diagnose_every is not None
    finished = resume and (out / RESULT).exists()
    result = train_and_save(
        settings,
        out,
        diagnose=diagnose,
        diagnose_every=diagnose_every,
        unusable=_show_unusable if count_unusable else None,
        **others,
    )
    if as_json:
        print_json(result)
        return
    console = Console(highlight=False)
    if finished:
        console.print("finished        before: nothing was trained, and nothing spent")
    if not result["private"]:
        console.print(f"[bold red]NOT PRIVATE[/]     {result['privacy']}", soft_wrap=True)
    paid = f"(delta {settings.delta:g}, {settings.accountant})"
    console.print(f"epsilon         {shown_bound(result['epsilon'])}  {paid}")
    # The words stand below one another.
    if "test_scores" in result:
        for name, words in told(result):
            console.print(f"{name:14}  {words}")
    else:
        name = "held out      " if data.endswith(VALIDATION) else "test accuracy "
        console.print(f"{name}  {result['test_accuracy']:.2%}")
    clipped = f"x clip norm {settings.clip_norm:g}"
    console.print(f"noise           {result['noise_multiplier']:g}  {clipped}, {result['noise']}")
    console.print(f"steps           {result['steps']}  in {result['seconds']:.1f} s")
    files = ["result.json", "model.safetensors", "ledger.json"] + ["diagnostics.jsonl"] * diagnose
    console.print(f"files           {out}/{', '.join(files)}", soft_wrap=True)
    if settings.seed is not None:
        console.print(f"note            {result['note']}", soft_wrap=True)


def _show_unusable(counted: Any) -> None:
    Console(highlight=False, stderr=True).print(f"unusable        {counted}", soft_wrap=True)


@app.command()
@takes_run_options(
    only=["batch_size", "engine"], texts={"batch_size": "Examples in a batch."}, batch_size=256
)
def explain(
    data: DataName = "digits",
    model: ModelName = "mlp",
    rule: RuleName = "adam-bc",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: an argument of the rule.")
    ] = None,
    data_option: DataOption = None,
    model_option: ModelOption = None,
    max_degree: MaxDegree = None,
    hops: Hops = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Show which function uses each parameter, how its norms are taken, its share of time and memory."""
    from adamas.experiment.training import Settings, private_run, task

    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=rule_options(rule, set_),
        **task_options(data, model, data_option, model_option, max_degree, hops),
        noise_multiplier=1.0,
        delta=1e-5,
        steps=1,
        **options,
    )
    _, trained, examples = task(settings)
    explanation = private_run(settings, trained, examples).explain()
    if as_json:
        print_json(asdict(explanation))
    else:
        print(explanation)


def task_options(
    data: str,
    model: str,
    data_options: list[str] | None,
    model_options: list[str] | None,
    max_degree: int | None,
    hops: int | None,
) -> dict[str, Any]:
    """Parses options of data set and model; both of a graph know the number of hops."""
    name = data.removesuffix(VALIDATION)
    _validate.one_of(DATASETS, data=name)
    _validate.one_of(MODELS, model=model)
    made: dict[str, dict[str, Any]] = {}
    for setting, factory, texts in (
        ("data_options", DATASETS[name], data_options),
        ("model_options", MODELS[model], model_options),
    ):
        known = [one for one in inspect.signature(factory).parameters if one not in _GIVEN]
        made[setting] = assignments(known, texts or [], option=f"--{setting[:-1].replace('_', '-')}")
        for option, value in (("max_degree", max_degree), ("hops", hops)):
            if value is not None and option in known:
                if option in made[setting]:
                    flag = f"--{option.replace('_', '-')}"
                    raise ValueError(f"Expected {option} once, by {flag} or as an option, got both.")
                made[setting][option] = value
    read, reached = (made[setting].get("hops", 1) for setting in ("data_options", "model_options"))
    if "max_degree" in made["data_options"] and model != "node-mlp" and read != reached:
        raise ValueError(
            f"Expected data and model with the same hops, got {read} and {reached}. Give --hops for both."
        )
    if max_degree is not None and "max_degree" not in made["data_options"]:
        raise ValueError(f"Expected --max-degree for a graph only, and data={data!r} is none.")
    return made


def model_options(model: str, texts: list[str] | None) -> dict[str, Any]:
    """Parses NAME=VALUE texts into arguments of a model."""
    _validate.one_of(MODELS, model=model)
    known = [one for one in inspect.signature(MODELS[model]).parameters if one not in _GIVEN]
    return assignments(known, texts or [], option="--model-option")


def rule_options(rule: str, texts: list[str] | None, lr: float | None = None) -> dict[str, Any]:
    """Parses NAME=VALUE texts into arguments of a rule."""
    _validate.one_of(RULES, rule=rule)
    known = [name for name in inspect.signature(RULES[rule]).parameters if name != "params"]
    return assignments(known, texts or [], lr)
