"""docs/learning_rates.md, the default rates and the evidence of `adamas.suggest` agree with stored trials."""

import inspect
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import adamas
from adamas.reproduce import load_table
from adamas.reproduce.results import Results
from adamas.rules import RULES
from adamas.rules.presets import preset
from adamas.suggestions import choices, evidence
from tests.support.rate_trials import (
    HELD_OUT,
    ROOT,
    TIE,
    TRIALS,
    careful_winner,
    constant,
    left_out,
    lines,
    lost,
    rates,
    tasks,
    trials,
    winner,
)

PAGE = (ROOT / "docs/learning_rates.md").read_text(encoding="utf-8")
NO_TRIALS = {"adadps", "dp2-rmsprop"}


def table(heading: str) -> list[list[str]]:
    """Reads the rows of the table whose head begins with this."""
    start = PAGE.index(heading)
    rows = PAGE[start:].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def rule_of(cell: str) -> str:
    return cell.replace("`", "")


def default(rule: str) -> float:
    return inspect.signature(RULES[rule]).parameters["lr"].default


ROWS = {rule_of(row[0]): row for row in table("| rule | loss by rate")}


@pytest.mark.parametrize("experiment", [TRIALS, HELD_OUT])
def test_the_trials_are_complete_and_are_those_of_the_table(experiment):
    made = load_table(ROOT / f"experiments/{experiment}.toml")
    results = Results(ROOT / f"experiments/{experiment}/results.jsonl", made)
    assert len(results.lines) == len(made.cells()) * made.seeds
    assert all(line["settings"]["data"].endswith("/validation") for line in results.lines)


def test_every_rule_with_trials_has_a_row():
    assert {name.split(" ")[0] for name in ROWS} == set(RULES) - NO_TRIALS


@pytest.mark.parametrize("rule", ROWS)
def test_the_losses_of_the_page_are_those_of_the_results(rule):
    losses, stated, counted, behind = ROWS[rule][1:]
    found = {float(rate): float(loss) for rate, loss in re.findall(r"([\d.]+): ([\d.]+)", losses)}
    assert found == {rate: float(f"{loss:.1f}") for rate, loss in constant(rule).items()}
    (bold,) = re.findall(r"\*\*([\d.]+):", losses)
    assert float(bold) == careful_winner(rule)
    used = sum(rule in setting.accuracies for setting in trials().values())
    assert counted == f"{used} / {len(tasks(rule))}"
    assert behind == f"{lost(rule, lambda _: careful_winner(rule), of_all=True):.1f}"
    if rule in RULES:
        assert float(stated) == default(rule)
        assert default(rule) == careful_winner(rule)


def test_adaclip_hardly_leaves_the_majority_class_on_adult():
    adult = [one for one in trials().values() if one.task.startswith("adult") and "adaclip" in one.accuracies]
    assert len(adult) == 2
    assert all(one.best("adaclip") < 77 for one in adult)
    assert all(one.best("adam") > 83 for one in adult)


def test_the_criterion_prefers_the_smaller_rate_within_a_point():
    losses = constant("sgd")
    assert min(losses, key=losses.get) == 3.0
    assert losses[1.0] - losses[3.0] < TIE
    assert winner("sgd") == 1.0
    assert (winner("adam-bc"), winner("adam-bc", without="digits-mlp")) == (0.01, 0.003)
    assert careful_winner("adam-bc") == 0.003


@pytest.mark.parametrize("name", evidence.RULES)
def test_the_evidence_is_that_of_the_trials(name):
    one = evidence.RULES[name]
    losses = constant(name)
    assert one.lost == float(f"{lost(name, lambda s: one.rate(s.noise)):.1f}")
    assert one.behind == float(f"{lost(name, lambda s: one.rate(s.noise), of_all=True):.1f}")
    assert one.constant == min(losses, key=losses.get)
    assert one.constant_lost == float(f"{min(losses.values()):.1f}")
    row = next(row for row in table("| rule | formula for the rate") if rule_of(row[0]) == name)
    assert row[1].startswith(f"{one.scale:g}/")
    assert row[1].endswith(f"at most {one.largest:g}")
    near = [replace(one, scale=one.scale * 10 ** (k / 20)) for k in range(-20, 21)]
    formula = left_out(name, [lambda s, each=each: each.rate(s.noise) for each in near])
    fixed = left_out(name, [lambda _, rate=rate: rate for rate in rates(name)])
    assert row[2:] == [f"{x:.1f}" for x in (one.lost, one.constant_lost, formula, fixed)]


def test_the_reach_of_the_trials_is_as_the_evidence_says():
    every = trials().values()
    assert (min(s.noise.steps for s in every), max(s.noise.steps for s in every)) == evidence.STEPS_TRIED
    assert (min(s.epochs for s in every), max(s.epochs for s in every)) == evidence.EPOCHS_TRIED
    noisiest = max(s.noise.of_mean(s.parameters) for s in every)
    assert float(f"{noisiest:.2f}") == evidence.LARGEST_MEAN_NOISE
    assert {line["settings"].get("clip_norm", 1.0) for line in lines(TRIALS)} == {choices.CLIP_NORM}


def test_the_best_rates_and_batches_on_the_page_are_those_of_the_results():
    for steps, rate in re.findall(r"0\.001 with (633) steps", PAGE) and (
        (633, 0.001),
        (159, 0.01),
        (42, 0.03),
    ):
        (setting,) = (
            s for n, s in trials().items() if n.startswith("mnist-mlp-eps3") and s.noise.steps == steps
        )
        accuracies = setting.accuracies["adam-bc"]
        assert max(accuracies, key=accuracies.get) == rate
    rows = table("| | steps | `sgd`")
    assert len(rows) == 6
    for name, steps, *cells in rows:
        task, batch = name.replace("MNIST", "mnist-mlp").replace("Adult", "adult-mlp").split(", batch ")
        setting = trials()[f"{task}-eps3-b{batch}-e3"]
        assert int(steps) == setting.noise.steps
        rules = ("sgd", "sgd with momentum 0.9", "adam", "adam-bc")
        assert cells == [f"{setting.best(rule):.1f}" for rule in rules]


def test_published_rates_times_their_steps_are_as_the_page_says():
    adambc, macadam = preset("dp-adambc/cifar10", "adam-bc"), preset("dp-macadam/mnist-sigma0.5", "adam-bc")
    steps = macadam.training["epochs"] * math.ceil(60_000 / macadam.training["batch_size"])
    assert (adambc.training["steps"], steps) == (240, 1175)
    assert f"{240 * adambc.options['lr']:.1f}" == f"{steps * macadam.options['lr']:.1f}" == "1.2"
    page = " ".join(PAGE.split())
    assert "1.2 for DP-AdamBC on CIFAR-10 (240 steps) and 1.2 for DP-MacAdam's on MNIST (1,175 steps)" in page


HELD = {(line["column"], line["row"]): line for line in lines(HELD_OUT)}


@pytest.mark.parametrize("column", sorted({column for column, _ in HELD}))
def test_the_suggested_row_is_what_is_suggested_now(column):
    line = HELD[column, "suggested"]
    made = adamas.suggest(
        n=round(line["settings"]["batch_size"] / line["sampling_rate"]),
        parameters=line["parameters"],
        epsilon=line["settings"]["epsilon"],
        epochs=line["settings"]["epochs"],
        delta=line["delta"],
    )
    assert (made.rule, made.lr) == (line["settings"]["rule"], line["settings"]["rule_options"]["lr"])
    assert made.batch_size == line["settings"]["batch_size"]
    assert made.noise_multiplier == line["noise_multiplier"]


def test_the_held_out_table_of_the_page_is_that_of_the_results():
    rows = table("| task held out")
    titles = load_table(ROOT / f"experiments/{HELD_OUT}.toml").columns
    assert {row[0] for row in rows} == {column.title for column in titles.values()}
    for title, *cells in rows:
        (name,) = (name for name, column in titles.items() if column.title == title)
        found = {row: 100 * line["test_accuracy"] for (column, row), line in HELD.items() if column == name}
        grid = {row: value for row, value in found.items() if "-b" in row}
        best = max(grid.values())
        expected = [found["suggested"], found["defaults"], found["earlier-defaults"], best]
        assert [float(cell) for cell in cells[:4]] == [float(f"{value:.1f}") for value in expected]
        assert cells[4] == f"{best - found['suggested']:.1f}"
        assert int(cells[5]) == len(grid)


def test_the_differences_on_held_out_tasks_are_as_the_page_says():
    def ahead(one, other):
        names = ("fashion-eps1", "fashion-eps8", "text-eps1")
        pairs = [(HELD[name, one]["test_accuracy"], HELD[name, other]["test_accuracy"]) for name in names]
        return [f"{100 * (a - b):.1f}" for a, b in pairs]

    assert "by {}, {} and {} points".format(*ahead("suggested", "defaults")) in PAGE
    assert [x.lstrip("-") for x in ahead("defaults", "earlier-defaults")] == ["0.6", "0.0", "7.2"]
    too_large, now = HELD["fashion-eps8", "adam-bc-b256-0.01"], HELD["fashion-eps8", "defaults"]
    assert too_large["steps"] == now["steps"] == 1055
    behind = 100 * (now["test_accuracy"] - too_large["test_accuracy"])
    assert f"0.01 is {behind:.1f} points behind 0.003" in " ".join(PAGE.split())
    assert now["settings"]["rule_options"]["lr"] == default("adam-bc")
    assert HELD["text-eps1", "defaults"]["steps"] == 125


def test_the_page_exists_where_the_rules_point_to():
    for rule in RULES.values():
        text = " ".join((rule.__doc__ or "").split())
        assert ("docs/learning_rates.md" in text) != ("not come from trials" in text)
    assert Path(ROOT / "docs/learning_rates.md").exists()


@pytest.mark.slow  # importing pandas takes seconds
def test_what_is_said_about_tables_is_what_tables_have():
    pytest.importorskip("pandas")
    from adamas.cli.training import train
    from adamas.tabular import defaults

    made = adamas.suggest(n=4000, parameters=17, epsilon=1.0, epochs=20)
    page = " ".join(PAGE.split())
    assert f"a constant rate of {made.lr:g} instead" in page
    rate = f"{defaults.CLASSES_RATE:g} for classes with a schedule that falls to 0"
    assert f"{rate}, and {defaults.EPOCHS} epochs" in page
    size = inspect.signature(train).parameters["batch_size"].default
    assert f"a tenth of the rows in the estimators, and {size} rows on the command line" in page
    assert (defaults.SCHEDULE, defaults.BATCH_SHARE) == ("linear", 0.1)
    largest = max(defaults.CLASSES_RATE, defaults.NUMBERS_RATE)
    assert f"with rates up to {largest:g} that fall to 0" in made.reasons[6]
