"""Every epsilon that is shown is rounded up, and every budget is shown as it was given."""

import ast
import json
import math
import re
from decimal import Decimal
from pathlib import Path

import dp_accounting
import pytest

import adamas
from adamas import DataLedger, _progress, _words, calibrate
from adamas.accounting.budget import Budget
from tests.support.command_line import call
from tests.support.small_runs import finish, make_run

PACKAGE = Path(adamas.__file__).parent
STEP = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
VALUE = 0.78498  # rounded to nearest: 0.785 with three digits, 0.78 with two

SPENDING = re.compile(r"epsilon|spent|\bcost\b|budget|claimed|planned", re.IGNORECASE)
# Files whose costs are seconds.
OTHERS = {"engines/explain.py"}


def formatted_epsilons(source: str) -> list[str]:
    """Returns the f-string fields and the calls of `format` or `round` that format an epsilon themselves."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            value = node.value
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("format", "round")
            and len(node.args) > 1
        ):
            value = node.args[0]
        else:
            continue
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute)}
        names |= {
            n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        if any(SPENDING.search(name) for name in names):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "source",
    [
        'f"{epsilon:.3g}"',
        'f"{run.epsilon():.4f}"',
        'f"{self.budget:g}"',
        "f\"{result['epsilon']:.2f}\"",
        'format(spent, ".3f")',
        "round(max_epsilon, 2)",
    ],
)
def test_the_search_finds_formatted_epsilons(source):
    assert formatted_epsilons(source)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [file for file in sorted(PACKAGE.rglob("*.py")) if file.relative_to(PACKAGE).as_posix() not in OTHERS],
    ids=lambda file: str(file.relative_to(PACKAGE)),
)
def test_no_epsilon_is_rounded_to_nearest(file):
    assert formatted_epsilons(file.read_text()) == []


# --- the functions that format epsilons and budgets -----------------------------------------------------


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize(
    "value", [VALUE, 3.0, 3.0000004, 0.1 + 0.2, math.nextafter(0.5, 1), 1e-9, 12345.678, 1e300, 5e-324]
)
def test_a_bound_is_never_rounded_down(value, digits):
    for text in (_words.rounded_up(value, digits=digits), _words.rounded_up(value, digits)):
        assert Decimal(text) >= Decimal(value) or float(text) == value
        assert float(text) >= value
    near = _words.rounded_up(value, digits=digits)
    assert float(near) <= value * (1 + 10.0 ** (1 - digits)) or value < 1e-300


@pytest.mark.parametrize("value", [1000.0, 3.0, VALUE, 3.0000004])
def test_a_limit_is_shown_exactly(value):
    assert float(_words.limit(value)) == value


# --- each place that shows one --------------------------------------------------------------------------


def shown(text: str) -> list[float]:
    """Returns the decimal numbers in a text, in order."""
    return [float(number) for number in re.findall(r"(?<![\w.-])\d+\.\d+(?![\w.])", text)]


def test_a_progress_bar_rounds_up(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "_SECONDS_BETWEEN_EPSILONS", -1.0)
    monkeypatch.setenv("COLUMNS", "200")
    with _progress.progress_bar(True, 0, 2, lambda: 0.78412) as advance:
        advance()
        advance()
    assert "ε = 0.785" in capsys.readouterr().err


def test_a_privacy_statement_rounds_up(monkeypatch):
    run = make_run()
    finish(run)
    monkeypatch.setattr(run, "epsilon", lambda: 0.784912)
    assert "(0.7850, " in run.privacy_statement()


@pytest.fixture
def data(tmp_path, monkeypatch):
    found = DataLedger.create(tmp_path / "data.ledger", epsilon=0.7000004, delta=1e-5)
    monkeypatch.setattr(adamas.accounting.data_ledger, "composed_epsilon", lambda *_, **__: 0.784912)
    return found


def test_a_refused_reservation_rounds_up(data):
    with pytest.raises(adamas.BudgetError, match=r"epsilon=0\.7850, above its budget of 0\.7000004 at"):
        data.reserve("run", [(STEP, 1)])


def test_an_exhausted_data_ledger_rounds_up(data, monkeypatch):
    monkeypatch.setattr(
        data, "spendings", lambda: [adamas.accounting.data_ledger.Account("a", "", [(STEP, 1)], True)]
    )
    with pytest.raises(adamas.BudgetError, match=r"epsilon=0\.7000004 in .*: 0\.7850 is spent"):
        data.noise_multiplier(sampling_rate=0.1, steps=3)


def test_ledger_show_rounds_up(data, monkeypatch, capsys):
    spent = adamas.accounting.data_ledger.Account("a", "a run", [(STEP, 1)], True)
    monkeypatch.setattr(DataLedger, "spendings", lambda _: [spent])
    _, printed, _ = call(capsys, "ledger", "show", str(data.path))
    assert shown(printed)[:3] == [0.785, 0.785, 0.7000004]


def test_ledger_create_shows_the_exact_budget(tmp_path, capsys):
    _, printed, _ = call(capsys, "ledger", "create", str(tmp_path / "l"), "--epsilon", "3.0000004")
    assert "a budget of epsilon 3.0000004 at" in printed


def test_an_exhausted_budget_is_shown_exactly():
    with pytest.raises(adamas.BudgetError, match=r"exceed epsilon=0\.1000000004 at"):
        Budget(0.1000000004, 1e-5, "rdp").require([(STEP, 1)], STEP)


def test_extend_rounds_up_what_was_spent(monkeypatch):
    run = make_run()
    finish(run)
    monkeypatch.setattr(adamas.Ledger, "epsilon", lambda *_: 0.784912)
    with pytest.raises(ValueError, match=r"above what was spent, 0\.7850\."):
        run.extend(steps=2, epsilon=0.7)


def test_a_failed_calibration_rounds_up():
    with pytest.raises(ValueError, match=r"it gives epsilon=0\.7850\."):
        calibrate.least_noise_multiplier(lambda _: 0.784912, epsilon=0.5, delta=1e-5)


def test_the_epsilon_command_rounds_up(monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "epsilon", lambda **_: 0.78491234)
    _, printed, _ = call(capsys, "epsilon", "--noise-multiplier=1", "--sampling-rate=0.1", "--steps=3")
    assert printed.split() == ["epsilon", "0.7850"]


def test_a_report_rounds_up(tmp_path):
    from adamas.report.run_page import _table
    from adamas.report.runs import load_runs

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"epsilon": 0.784912, "delta": 1e-5, "private": True}))
    assert "0.7850" in _table(load_runs([folder]))


def test_a_check_rounds_up(monkeypatch):
    from adamas.check import accounting

    run = make_run(noise_multiplier=None, epsilon=3.0000004)._replaced()
    monkeypatch.setattr(accounting, "_composed", lambda *_, **__: 0.784912)
    monkeypatch.setattr(type(run), "epsilon", lambda *_: 0.784912)
    _, seen = accounting.releases_recorded(type("Replay", (), {"still": run, "fresh": lambda _: run})())
    assert seen.count("0.7850") == 3
    assert "of 3.0000004" in seen
