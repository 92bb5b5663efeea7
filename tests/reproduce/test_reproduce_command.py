"""`adamas reproduce`, as a user calls it."""

from pathlib import Path

import pytest

from adamas import cli
from adamas.reproduce.commands import experiments_folder, overview
from tests.support.small_tables import TABLE, write


def test_the_command_makes_a_table_and_continues_it(tmp_path, monkeypatch, capsys):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for arguments, runs in (["--quick"], 2), ([], 8), (["--seeds", "3", "--rows", "sgd"], 10):
        with pytest.raises(SystemExit) as stop:
            cli.main(["reproduce", "paper/table", *arguments])
        assert stop.value.code == 0
        kept = Path("experiments/paper/table/results.jsonl").read_text().splitlines()
        assert len(kept) == runs
    out, err = capsys.readouterr()
    assert "DP-SGD" in out
    assert "80.5 ± 0.1" in out
    assert "left" in err
    assert "DP-SGD" in Path("experiments/paper/table/README.md").read_text()
    with pytest.raises(SystemExit):
        cli.main(["reproduce"])
    assert "paper/table  10 of 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper/other"], "Expected a table among paper/table, got 'paper/other'."),
        (["paper/table", "--rows", "eve"], "Expected row='eve' to be one of 'sgd', 'adam'."),
        (["paper/table", "--columns", "middle"], "Expected column='middle' to be one of 'low', 'high'."),
        (["paper/table", "--jobs", "0"], "jobs=0"),
        (["paper/table", "--seeds", "0"], "seeds=0"),
        (["paper/table", "--quick", "--seeds", "0"], "seeds=0"),
        (["--experiments", "nowhere"], "Name their folder with --experiments"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("results.jsonl"))


def test_titles_are_not_read_as_markup(tmp_path, monkeypatch, capsys):
    write(tmp_path, TABLE.replace('"DP-SGD"', '"DP-SGD [b] [/y]"'))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "paper/table", "--rows", "sgd", "--seeds", "1"])
    assert stop.value.code == 0
    assert "DP-SGD [b] [/y]" in capsys.readouterr().out


def test_a_folder_without_tables_does_not_hide_those_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "macadam/table1" in [name for name, *_ in overview(experiments_folder(None))]


def test_a_table_that_cannot_be_read_is_listed_with_the_reason(tmp_path):
    path = write(tmp_path, TABLE.replace("seeds = 2", "seads = 2"))
    ((name, state, words),) = overview(path.parent.parent)
    assert (name, state) == ("paper/table", "cannot be read")
    assert "'seads'" in words
