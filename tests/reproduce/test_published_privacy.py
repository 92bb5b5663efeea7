"""The papers' privacy numbers, compared with computed ones."""

import importlib
import math
from decimal import Decimal
from pathlib import Path

import pytest

from adamas import calibrate
from adamas.reproduce import graph_accounting, privacy
from adamas.reproduce.privacy import grid, published_numbers, render
from adamas.reproduce.privacy_entries import read_entries

FILE = Path(__file__).parents[2] / "experiments" / "privacy" / "published.toml"
MNIST = """
[[table]]
paper = "Somebody (2026)"
place = "Table I"
task = "MNIST"
what = "epsilon"
accountant = "rdp"
batch_size = 256
dataset_size = 60_000
epochs = 5
delta = 1e-5
rows = [{ noise_multiplier = 1.0, published = 1.15 }]
"""
STEPS = (
    MNIST.replace('"epsilon"', '"steps"')
    .replace("epochs = 5\n", "epsilon = 1\n")
    .replace("published = 1.15", "published = 777")
)


@pytest.fixture(scope="module")
def rows():
    pytest.importorskip("opacus")
    return published_numbers(FILE, tight=False)


# Results of a computation outside this library: (paper, place) -> values in the order of the file.
EXPECTED = {
    ("DP-MacAdam", "Table I"): [7.490, 3.999, 2.326, 1.457, 1.022, 0.795],
    ("DP-MacAdam", "Table II"): [10.398, 5.878, 2.446, 1.110, 0.662],
    ("DP-MicroAdam", "Table 8"): [2480, 4556, 7227, 10491, 18798],
    ("DP-MicroAdam", "Table 9"): [71_588],
    ("DP-MicroAdam", "Table 9, De et al. (2022)"): [71_588],
    ("DP-MicroAdam", "Table 10"): [539, 998],
    ("DP-MicroAdam", "Table 7, SPARTA and DP-BiTFiT"): [0.801],
    ("DP-AdamBC", "Appendix A"): [7.06, 6.99, 7.30, 669],
    ("DP-AdamW", "Appendix C.1"): [4.936, 1.951, 1.107],
    ("DP-AdamW", "Appendix C.2"): [0.807, 0.555, 0.442],
    ("DP-AdamBC", "Appendix D"): [88, 340],
}
PRINTED = (
    "7.49 4.00 2.33 1.46 1.02 0.80 10.40 5.88 2.45 1.11 0.66 2480 4556 7227 10492 18798 71528 71589 539 994 "
    "0.8 7.1 7.0 7.3"
)


@pytest.mark.slow
def test_every_published_number_is_there(rows):
    assert len(rows) == sum(map(len, EXPECTED.values())) == 33
    assert [str(row.published) for row in rows if row.published is not None] == PRINTED.split()
    assert sum(row.recorded is not None for row in rows) == 9
    assert all((row.published is None) != (row.recorded is None) for row in rows)


@pytest.mark.slow
def test_the_committed_page_has_these_numbers(rows):
    """Leaves out the tight values, which take a minute."""
    text = FILE.with_suffix("").joinpath("README.md").read_text(encoding="utf-8")
    for row in grid(rows)[1:]:
        assert f"| {' | '.join(row[:8])} |" in text, row
    assert "21 of 21 printed numbers come out" in text
    assert "3 of 3 more come out after a setting" in text
    assert "9 are printed nowhere" in text


@pytest.mark.slow
@pytest.mark.parametrize("key", EXPECTED)
def test_the_reproduced_values_are_those_of_an_independent_computation(rows, key):
    found = [row for row in rows if (row.paper.split(" (")[0], row.place) == key]
    assert len(found) == len(EXPECTED[key])
    for row, expected in zip(found, EXPECTED[key], strict=True):
        if row.quantity == "steps":
            assert row.reproduced == expected
        else:
            digits = 2 if key == ("DP-AdamBC", "Appendix A") else 3
            # Half of the last digit, and 1e-4 for noise that is rounded up and for other FFTs.
            assert abs(row.reproduced - expected) <= 0.5 * 10**-digits + 1e-4


def test_all_rows_agree_and_every_tolerance_has_a_reason(rows):
    assert all(row.agrees is True for row in rows)
    assert sum("Within " in row.remark for row in rows) == 4
    assert all(row.missing == "" and row.tight is None and row.spent is None for row in rows)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("published = 1.46", "published = 1.47", id="epsilon"),
        pytest.param("published = 7227", "published = 7228", id="steps"),
        pytest.param("published = 10_492", "published = 10_493", id="beyond-the-tolerance"),
        pytest.param("recorded = 1.951", "recorded = 1.953", id="noise"),
        pytest.param("recorded = 88", "recorded = 87", id="graph"),
        pytest.param('delta = "1/2146"', "delta = 1e-5", id="stated-delta"),
    ],
)
def test_a_wrong_value_does_not_agree(old, new):
    if "1.46" in old:  # a value of the PRV accountant of Opacus
        pytest.importorskip("opacus")
    text = FILE.read_text(encoding="utf-8")
    assert text.count(old) == 1
    changed, number = text.replace(old, new), text[: text.index(old)].count("[[table]]") - 1
    table = "[[table]]" + changed.split("[[table]]")[1:][number]
    entries = [entry for entry in read_entries(table) if entry not in read_entries(text)]
    assert len(entries) == 1
    assert privacy._row(entries[0], tight=False).agrees is False


def test_remarks_on_other_conventions_hold():
    snli = {"noise_multiplier": 0.4, "sampling_rate": 256 / 549_367, "steps": 5 * 2146}
    assert round(calibrate.epsilon(**snli, delta=1e-5, accountant="rdp"), 2) == 10.08
    assert round(calibrate.epsilon(**snli, delta=1e-5), 2) == 8.22
    for steps, expected in [(239, 7.0), (240, 7.1), (245, 7.1), (246, 7.2)]:
        cifar = {"noise_multiplier": 2.0, "sampling_rate": 8192 / 50_000, "delta": 1e-5}
        assert round(calibrate.epsilon(**cifar, steps=steps, accountant="rdp"), 1) == expected
    for budget, noise, degree, expected in [(12.0, 2.0, 7, 771), (3.0, 2.7, 6, 112), (6.0, 2.7, 6, 405)]:
        arxiv = {"nodes": 90_941, "batch_size": 10_000, "max_degree": degree, "noise_multiplier": noise}
        assert graph_accounting.steps(epsilon=budget, delta=1e-5, **arxiv) + 1 == expected


def test_tight_epsilon_is_that_of_pld():
    (row,) = published_numbers(MNIST)
    assert round(row.tight, 3) == 0.785
    assert row.spent is None
    assert row.reproduced > row.tight


def test_tight_steps_are_within_one_of_the_most_that_keep_the_budget():
    text = STEPS.replace("256", "4096").replace("60_000", "45_000").replace("= 1.0", "= 8.0")
    (row,) = published_numbers(text)
    run = {"delta": 1e-5, "noise_multiplier": 8.0, "sampling_rate": 4096 / 45_000}
    most = int(row.tight)
    assert calibrate.epsilon(steps=most, **run) <= 1.0 < calibrate.epsilon(steps=most + 2, **run)
    assert row.spent == calibrate.epsilon(steps=777, **run)


def test_tight_noise_is_within_0_002_of_the_least_that_keeps_the_budget():
    text = MNIST.replace('"epsilon"', '"noise_multiplier"').replace("256", "4096").replace("60_000", "45_000")
    (row,) = published_numbers(text.replace("noise_multiplier = 1.0, published", "epsilon = 1, recorded"))
    run = {"delta": 1e-5, "steps": 55, "sampling_rate": 4096 / 45_000}
    least = row.tight
    assert calibrate.epsilon(noise_multiplier=least, **run) <= 1.0
    assert calibrate.epsilon(noise_multiplier=least - 0.002, **run) > 1.0
    assert row.spent is None


def test_steps_may_stop_beyond_the_budget_and_at_the_end_of_an_epoch():
    def reproduced(lines: str) -> float:
        (row,) = published_numbers(STEPS.replace("epsilon = 1\n", f"epsilon = 1\n{lines}\n"), tight=False)
        return row.reproduced

    within = reproduced("")
    assert reproduced('stop = "beyond"') == within + 1
    assert reproduced("whole_epochs = 100") == math.ceil(within / 100) * 100


def test_without_opacus_the_row_says_what_it_needs(monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    (row,) = published_numbers(MNIST.replace('"rdp"', '"prv"'), tight=False)
    assert row.reproduced is None
    assert row.agrees is None
    assert row.missing == "needs opacus"
    assert "| 1.15 | needs opacus | PRV of Opacus | – |" in render([row])


def test_the_table_shows_all_columns_and_numbers_the_remarks(rows):
    text = render(rows)
    lines = text.splitlines()
    assert lines[0].startswith("| Paper | Place | Run | Quantity | Published | Reproduced | by | Agrees |")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert {line.count("|") for line in table} == {12}
    assert "| epsilon | 4.00 | 3.999 | PRV of Opacus | yes |" in text
    assert "| steps | 71,528 | 71,588 | RDP | yes |" in text
    assert "| noise multiplier | not printed; 4.936 as we assume | 4.936 | RDP | yes |" in text
    assert text.count("\n1. The text names connect-the-dots") == 1


def test_a_number_that_does_not_agree_is_marked():
    assert "| 1.16 | 1.1" in render(published_numbers(MNIST.replace("1.15", "1.16"), tight=False))
    assert "| NO |" in render(published_numbers(MNIST.replace("1.15", "1.99"), tight=False))


GRAPH = STEPS.replace('"rdp"', '"graph-rdp"').replace("epsilon = 1\n", "epsilon = 1\nmax_degree = 3\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MNIST + "x = [", "expected TOML"),
        ("title = 1\n" + MNIST, r"other keys: 'title'"),
        ("# nothing\n", r"expected \[\[table\]\] entries"),
        (MNIST.replace("rows", "lines"), "table 1 .*: expected the key 'rows'"),
        (MNIST.replace("batch_size", "bach_size"), r"table 1 \(Somebody.*row 1: Unknown key 'bach_size'"),
        (MNIST.replace("delta = 1e-5\n", ""), "row 1: Missing key 'delta'"),
        (MNIST.replace("noise_multiplier = 1.0, ", ""), "Missing key 'noise_multiplier'"),
        (MNIST.replace("256", '"256"'), "batch_size='256' to be a whole number"),
        (MNIST.replace("256", "70_000"), "batch_size=70000 <= dataset_size=60000"),
        (MNIST.replace("1.15", '"1.15"'), "published='1.15' to be a number, not a text"),
        (MNIST.replace("1.15", "true"), "published=True to be a number"),
        (MNIST.replace("1.15", "nan"), "published=nan"),
        (MNIST.replace("1e-5", "1.5"), r"delta=1\.5 in \(0, 1\)"),
        (MNIST.replace("1e-5", '"1/0"'), "delta='1/0' to be a number or a fraction"),
        (MNIST.replace("1e-5", "inf"), "delta=.*to be a number or a fraction"),
        (MNIST.replace('"MNIST"', "3"), "task=3 to be a text"),
        (MNIST.replace('"rdp"', '"gdp"'), "accountant='gdp' to be one of"),
        (MNIST.replace('"epsilon"', '"delta"'), "what='delta' to be one of"),
        (MNIST.replace("published = 1.15", "x = 1"), "Unknown key 'x'"),
        (MNIST.replace(", published = 1.15", ""), "'published' and 'recorded', found neither"),
        (MNIST.replace("epochs = 5", "epochs = 5\nsteps = 9"), "'steps' and 'epochs', found both"),
        (MNIST.replace("epochs = 5", "epochs = 5\nepsilon = 9"), "no key 'epsilon': the entry asks for it"),
        (MNIST.replace("epochs = 5", "epochs = 5\ntolerance = 9"), "a tolerance needs its reason"),
        (MNIST.replace("epochs = 5", 'epochs = 5\nstop = "within"'), "no key 'stop'"),
        (MNIST.replace("epochs = 5", "epochs = 5\nmax_degree = 5"), "no key 'max_degree'"),
        (MNIST.replace("epochs = 5", "epochs = 5\nsampling_rate = 0.1"), "no key 'batch_size'"),
        (STEPS.replace('"rdp"', '"prv"'), "'prv' answers 'epsilon' only"),
        (STEPS.replace("777", "777.5"), "whole number of steps, got 777.5"),
        (STEPS.replace("epsilon = 1\n", 'epsilon = 1\nstop = "soon"\n'), "stop='soon' to be one of"),
        (GRAPH.replace("max_degree = 3\n", ""), "Missing key 'max_degree'"),
        (STEPS.replace("epsilon = 1\n", "epsilon = 1e-9\n"), "Somebody.*Table I.*pay for one step"),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_key(text, message):
    with pytest.raises(ValueError, match=message):
        published_numbers(text, tight=False)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml to be a readable file"):
        published_numbers(tmp_path / "none.toml")


def test_a_path_may_be_a_string(tmp_path):
    (tmp_path / "one.toml").write_text(MNIST)
    (row,) = published_numbers(str(tmp_path / "one.toml"), tight=False)
    assert row.published == Decimal("1.15")
