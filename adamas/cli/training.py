"""`adamas train` and `adamas explain`: one model on one data set."""

import inspect
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adamas import _validate
from adamas.cli.app import (
    Accountant,
    ClipNorm,
    DataName,
    Delta,
    EngineName,
    Epsilon,
    Json,
    MicroBatchSize,
    ModelName,
    NoiseMultiplier,
    Seed,
    app,
    assignments,
    print_json,
    shown_bound,
)
from adamas.data import VALIDATION
from adamas.rules import RULES
from adamas.sampling import SAMPLERS

RuleName = Annotated[str, typer.Option(help=f"One of: {', '.join(RULES)}.")]


@app.command()
def train(
    data: DataName = "digits",
    model: ModelName = "mlp",
    rule: RuleName = "adam-bc",
    epsilon: Epsilon = None,
    noise_multiplier: NoiseMultiplier = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="With --noise-multiplier: stop before more is spent.")
    ] = None,
    delta: Delta = 1e-5,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or give --epochs.")] = None,
    batch_size: Annotated[int, typer.Option(help="Expected batch size.")] = 256,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the rule's default if not given.")] = None,
    clip_norm: ClipNorm = 1.0,
    seed: Seed = None,
    noise: Annotated[
        str, typer.Option(help="reproducible, or secure: safe from floating-point attacks, without a seed.")
    ] = "reproducible",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: any other argument of the rule.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="How the learning rate falls: constant, linear or cosine.")
    ] = "constant",
    ema: Annotated[float | None, typer.Option(help="Decay of an average of the weights, the result.")] = None,
    engine: EngineName = "auto",
    micro_batch_size: MicroBatchSize = None,
    sampling: Annotated[str, typer.Option(help=f"One of: {', '.join(SAMPLERS)}.")] = "poisson",
    max_batch_size: Annotated[int | None, typer.Option(help="For truncated-poisson.")] = None,
    accountant: Accountant = "pld",
    allow_large_delta: Annotated[bool, typer.Option(help="Accept a delta of 1/N or more.")] = False,
    progress: Annotated[
        bool | None, typer.Option(help="Show a progress bar; on a terminal if not given.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for result.json, model.safetensors and ledger.json, of one training at a time."
        ),
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
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Save the run in --out every so many steps.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run that --out has, if any; show the result of a finished one."
        ),
    ] = False,
    data_ledger: Annotated[
        Path | None, typer.Option(help="Ledger of the data set, from whose budget the run is paid.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a private model and write its result, weights and ledger."""
    # The import is late so that the calculators start without it.
    from adamas.experiment.training import RESULT, Settings, train_and_save

    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=rule_options(rule, set_, lr),
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        max_epsilon=max_epsilon,
        delta=delta,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        clip_norm=clip_norm,
        seed=seed,
        noise=noise,
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
    if resume and out is None:
        raise ValueError("Expected --out with --resume: the folder of the run to continue.")
    if out is None:
        out = Path("runs") / f"{data.replace('/', '-')}-{model}-{rule}-{datetime.now():%Y%m%d-%H%M%S}"
    diagnose = diagnose or diagnose_every is not None
    finished = resume and (out / RESULT).exists()
    result = train_and_save(
        settings,
        out,
        progress=progress,
        diagnose=diagnose,
        diagnose_every=diagnose_every,
        checkpoint_every=checkpoint_every,
        resume=resume,
        data_ledger=data_ledger,
    )
    if as_json:
        print_json(result)
        return
    console = Console(highlight=False)
    if finished:
        console.print("finished        before: nothing was trained, and nothing spent")
    if not result["private"]:
        console.print(f"[bold red]NOT PRIVATE[/]     {result['privacy']}", soft_wrap=True)
    console.print(f"epsilon         {shown_bound(result['epsilon'])}  (delta {delta:g}, {accountant})")
    # The words stand below one another.
    name = "held out      " if data.endswith(VALIDATION) else "test accuracy "
    console.print(f"{name}  {result['test_accuracy']:.2%}")
    console.print(
        f"noise           {result['noise_multiplier']:g}  x clip norm {clip_norm:g}, {result['noise']}"
    )
    console.print(f"steps           {result['steps']}  in {result['seconds']:.1f} s")
    files = ["result.json", "model.safetensors", "ledger.json"] + ["diagnostics.jsonl"] * diagnose
    console.print(f"files           {out}/{', '.join(files)}", soft_wrap=True)
    if seed is not None:
        console.print(f"note            {result['note']}", soft_wrap=True)


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
    from adamas.experiment.training import Settings, private_run, task

    settings = Settings(
        data=data,
        model=model,
        rule=rule,
        rule_options=rule_options(rule, set_),
        batch_size=batch_size,
        noise_multiplier=1.0,
        delta=1e-5,
        steps=1,
        engine=engine,
    )
    _, trained, examples = task(settings)
    explanation = private_run(settings, trained, examples).explain()
    if as_json:
        print_json(asdict(explanation))
    else:
        print(explanation)


def rule_options(rule: str, texts: list[str] | None, lr: float | None = None) -> dict[str, Any]:
    """Arguments of a rule out of NAME=VALUE texts."""
    _validate.one_of(RULES, rule=rule)
    known = [name for name in inspect.signature(RULES[rule]).parameters if name != "params"]
    return assignments(known, texts or [], lr)
