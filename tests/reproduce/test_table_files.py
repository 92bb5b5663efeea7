"""Tables of papers as TOML: settings of each cell, and errors that name the place."""

import re
from pathlib import Path

import pytest

from adamas import rules
from adamas.reproduce import Results, load_table
from adamas.reproduce.render import markdown
from adamas.reproduce.table import Cell, find_tables, merged
from tests.support.small_tables import TABLE, write

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_settings_come_from_table_column_row_and_cell(table):
    low, high = (table.cell_settings(Cell("adam", name), 3) for name in ("low", "high"))
    assert (low.rule_options, high.rule_options) == ({"lr": 0.01}, {"lr": 0.02})
    assert (low.noise_multiplier, high.noise_multiplier) == (1.0, 2.0)
    assert low.seed == 3
    assert table.rows["sgd"].published == {"low": (80.5, 0.1)}


def test_none_is_written_as_a_string(tmp_path):
    row = 'settings = { rule = "micro-adam", rule_options = { lr = 0.5, bits = "none" } }'
    table = load_table(
        write(tmp_path, TABLE.replace('settings = { rule = "sgd", rule_options = { lr = 0.5 } }', row))
    )
    assert table.cell_settings(Cell("sgd", "low"), 0).rule_options == {"lr": 0.5, "bits": None}


def test_a_setting_replaces_those_that_it_excludes():
    changed = merged({"epochs": 5, "epsilon": 1.0, "batch_size": 2}, {"steps": 3, "noise_multiplier": 1.0})
    assert changed == {"steps": 3, "noise_multiplier": 1.0, "batch_size": 2}
    kept = merged({"rule": "adam", "rule_options": {"lr": 1, "eps": 2}}, {"rule_options": {"lr": 3}})
    assert kept["rule_options"] == {"lr": 3, "eps": 2}
    other = merged({"rule": "adam", "rule_options": {"eps": 2}}, {"rule": "sgd", "rule_options": {"lr": 3}})
    assert other["rule_options"] == {"lr": 3}
    both = merged({"rule_options": {"lr": 3}}, {"rule": "sgd", "rule_options": {"momentum": 0.9}})
    assert both["rule_options"] == {"lr": 3, "momentum": 0.9}
    model = merged({"model": "mlp", "model_options": {"hidden": 3}}, {"model": "linear"})
    assert "model_options" not in model


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('claim = "Adam is better."', "", "'claim'"),
        ("seeds = 2", "seeds = 0", "seeds=0"),
        ("seeds = 2", "seads = 2", "'seads'"),
        ("evaluations = 2", 'measures = ["speed"]', "measure='speed'"),
        ('quick = { rows = ["adam"] }', 'quick = { rows = ["eve"] }', "row='eve'"),
        ("[[80.5, 0.1], []]", "[[80.5, 0.1]]", "Expected 2 published values"),
        ('form = "corrected"', 'form = "wrong"', "form='wrong'"),
        ('rule = "adam"', 'rule = "eve"', "Row 'adam', column 'low'.*rule='eve'"),
        ("batch_size = 64", "bath_size = 64", "settings of the table.*'bath_size'"),
        ("{ noise_multiplier = 2.0 }", "{ noise_level = 2.0 }", "settings of column 'high'.*'noise_level'"),
        ("{ lr = 0.5 }", "{ rate = 0.5 }", "rule_options among.*'rate'"),
        ('data = "digits"', 'data = "letters"', "data='letters'"),
        ("columns.high = {", "columns.middle = {", "column='middle'"),
        ("[settings]", "[settings", "TOML"),
    ],
)
def test_a_wrong_table_is_refused_with_the_place(tmp_path, old, new, message):
    assert old in TABLE
    with pytest.raises(ValueError, match=re.compile(f"table.toml.*{message}", re.DOTALL)):
        load_table(write(tmp_path, TABLE.replace(old, new, 1)))


@pytest.mark.parametrize("name", [name for name in find_tables(EXPERIMENTS) if name != "privacy/published"])
def test_every_committed_table_loads_and_its_page_is_current(name):
    table = load_table(EXPERIMENTS / f"{name}.toml")
    assert table.cells()
    page = EXPERIMENTS / name / "README.md"
    if page.exists():
        assert page.read_text() == markdown(Results(page.with_name("results.jsonl"), table)), (
            f"{page.relative_to(EXPERIMENTS.parent)} is out of date: run adamas reproduce {name} --seeds 1 "
            "--rows with a finished row"
        )


@pytest.mark.parametrize(("number", "data"), [("1", "mnist"), ("2", "cifar10")])
def test_rows_of_the_macadam_tables_are_the_presets(number, data):
    table = load_table(EXPERIMENTS / f"macadam/table{number}.toml")
    compared = 0
    for cell in table.cells():
        row, settings = table.rows[cell.row], table.cell_settings(cell, 0)
        if row.form == "ours":
            continue
        preset = rules.preset(
            f"dp-macadam/{data}-sigma{cell.column}", settings.rule, corrected=row.form == "corrected"
        )
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in preset.options.items()}
        assert settings.rule_options == options, cell
        for name, value in preset.training.items():
            assert getattr(settings, name) == value, (cell, name)
        compared += 1
    assert compared == 8 * len(table.columns)
