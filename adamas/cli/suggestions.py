"""`adamas suggest`: settings for a private training, from its sizes and budget."""

from typing import Annotated

import typer

from adamas.cli.app import Json, app, print_json


@app.command("suggest")
def suggest_command(
    dataset_size: Annotated[int, typer.Option(help="Number of training examples.")],
    parameters: Annotated[int, typer.Option(help="Number of trainable parameters.")],
    epsilon: Annotated[float, typer.Option(help="Budget.")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the budget; 1/(10 N), rounded down, if not given.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; or give --hours, or neither.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Hours for the training; needs --examples-per-second.")
    ] = None,
    examples_per_second: Annotated[
        float | None, typer.Option(help="Speed of your private training, from a short run.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="Bytes for the optimizer's state; no limit if not given.")
    ] = None,
    accountant: Annotated[str, typer.Option(help="pld or rdp.")] = "pld",
    as_json: Json = False,
) -> None:
    """Suggest rule, learning rate, batch size and epochs for a budget, with reasons and without data."""
    from adamas.suggestions import suggest

    made = suggest(
        n=dataset_size,
        parameters=parameters,
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        hours=hours,
        examples_per_second=examples_per_second,
        memory=memory,
        accountant=accountant,
    )
    if as_json:
        print_json(made.as_dict())
        return
    print(made)
    print("\nIn Python:\n")
    print("\n".join(f"  {line}" for line in made.snippet().splitlines()))
    print("\nOn the command line, for one of the data sets and models of adamas:\n")
    print(f"  {made.command()}")
