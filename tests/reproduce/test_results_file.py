"""The file of results: complete lines survive a crash, and results of another table are refused."""

import pytest

from adamas.reproduce import Results, load_table, results, runner
from adamas.reproduce.table import Cell
from tests.support.small_tables import TABLE, write


@pytest.fixture
def finished(tmp_path, table):
    """Writes a file of results with the first run of each row, and returns its path."""
    path = tmp_path / "results.jsonl"
    with Results(path, table) as kept:
        for row in table.rows:
            line = runner.finished_run(table.cell_settings(Cell(row, "low"), 0), 1, False)
            kept.add({"row": row, "column": "low", "seed": 0} | line)
    return path


def test_an_incomplete_last_line_is_removed_before_more_are_added(finished, table):
    whole = finished.read_bytes()
    finished.write_bytes(whole + whole[:100])
    assert len(Results(finished, table).lines) == 2  # a reader changes nothing
    assert len(finished.read_bytes()) == len(whole) + 100
    with Results(finished, table) as kept:
        assert len(kept.lines) == 2
        assert finished.read_bytes() == whole


def test_a_full_disk_leaves_earlier_results_intact(finished, table, monkeypatch):
    whole = finished.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with Results(finished, table) as kept:
        monkeypatch.setattr(results.os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left.*Earlier results are intact"):
            kept.add(kept.lines[0] | {"seed": 1})
    assert finished.read_bytes() == whole
    assert len(kept.lines) == 2


def test_two_processes_do_not_write_at_once(finished, table):
    with Results(finished, table), pytest.raises(RuntimeError, match="Another process is adding"):
        Results(finished, table).__enter__()
    with Results(finished, table):
        pass


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size = 64", "batch_size = 65", r"batch_size=64 there and 65 now"),
        (
            "{ lr = 0.01 }",
            "{ lr = 0.03 }",
            r"row 'adam', column 'low', seed 0 has rule_options=\{'lr': 0.01\}",
        ),
        ("evaluations = 2", "histograms = true", "has no moments"),
        ("[rows.sgd]", "[rows.other]", r"it has row 'sgd' in column 'low'"),
    ],
)
def test_results_of_another_version_are_refused_with_the_difference(finished, tmp_path, old, new, message):
    other = load_table(write(tmp_path, TABLE.replace(old, new, 1)))
    before = finished.read_bytes()
    with pytest.raises(ValueError, match=rf"line (1|2), is from another version of paper/table: .*{message}"):
        Results(finished, other)
    assert finished.read_bytes() == before


def test_results_with_another_default_of_a_rule_are_refused(finished, table, monkeypatch):
    def other(params, lr=0.1, momentum=0.5, weight_decay=0.0):
        raise AssertionError

    monkeypatch.setitem(results.RULES, "sgd", other)
    with pytest.raises(ValueError, match=r"rule.momentum=0.0 there and 0.5 now"):
        Results(finished, table)


def test_a_complete_last_line_without_a_newline_is_kept(finished, table):
    whole = finished.read_bytes()
    finished.write_bytes(whole[:-1])
    assert len(Results(finished, table).lines) == 2
    with Results(finished, table) as kept:
        assert len(kept.lines) == 2
    assert finished.read_bytes() == whole


def test_results_stay_valid_if_only_the_claim_changes(finished, tmp_path):
    other = load_table(write(tmp_path, TABLE.replace("Adam is better", "Adam is best")))
    assert len(Results(finished, other).lines) == 2


def test_lines_that_are_repeated_or_no_results_are_refused(finished, table):
    whole = finished.read_text()
    finished.write_text(whole + "{}\n")
    with pytest.raises(ValueError, match="line 3, is not a result"):
        Results(finished, table)
    finished.write_text(whole + whole.splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"line 3: row 'sgd', column 'low', seed 0 comes twice"):
        Results(finished, table)
