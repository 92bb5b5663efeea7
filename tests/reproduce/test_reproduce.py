"""Tables of papers: reading them, making their runs, keeping the results whatever happens."""

import concurrent.futures
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from adamas import cli, rules
from adamas.reproduce import Results, load_table, reproduce, results, runner
from adamas.reproduce.commands import experiments_folder, make_table, overview
from adamas.reproduce.render import markdown, summarize
from adamas.reproduce.table import Cell, find_tables, merged

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

TABLE = """
title = "A small table"
source = "Nobody (2026), Table 0"
claim = "Adam is better."
seeds = 2
evaluations = 2
quick = { rows = ["adam"] }

[settings]
data = "digits"
model = "linear"
batch_size = 64
steps = 4
delta = 1e-5

[columns.low]
title = "σ = 1"
settings = { noise_multiplier = 1.0 }
published_epsilon = 1.5

[columns.high]
title = "σ = 2"
settings = { noise_multiplier = 2.0 }

[rows.sgd]
title = "DP-SGD"
settings = { rule = "sgd", rule_options = { lr = 0.5 } }
published = [[80.5, 0.1], []]

[rows.adam]
title = "DP-Adam"
form = "corrected"
settings = { rule = "adam", rule_options = { lr = 0.01 } }
columns.high = { rule_options = { lr = 0.02 } }
"""


def write(folder, text=TABLE):
    path = folder / "experiments" / "paper" / "table.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Pool:
    """Runs in this process, since a new one takes seconds to start; the first `dying` of them end early."""

    _processes = None
    dying = 0

    def __init__(self, *arguments, **options):
        self.left = self.dying

    def submit(self, function, *arguments):
        future = concurrent.futures.Future()
        self.left -= 1
        if self.left >= 0:
            future.set_exception(BrokenProcessPool())
            return future
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **options):
        pass


class DyingPool(Pool):
    dying = 1


@pytest.fixture
def real_processes():
    """For the tests of the processes themselves."""


@pytest.fixture(autouse=True)
def processes(request, monkeypatch):
    if "real_processes" not in request.fixturenames:
        monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)


@pytest.fixture
def table(tmp_path):
    return load_table(write(tmp_path))


def without_seconds(lines):
    return sorted(({**line, "seconds": 0} for line in lines), key=json.dumps)


# --- what a table says ----------------------------------------------------------------------------------


def test_settings_come_from_table_column_row_and_their_crossing(table):
    low, high = (table.cell_settings(Cell("adam", name), 3) for name in ("low", "high"))
    assert (low.rule_options, high.rule_options) == ({"lr": 0.01}, {"lr": 0.02})
    assert (low.noise_multiplier, high.noise_multiplier) == (1.0, 2.0)
    assert low.seed == 3
    assert table.rows["sgd"].published == {"low": (80.5, 0.1)}


def test_none_is_written_as_a_word(tmp_path):
    row = 'settings = { rule = "micro-adam", rule_options = { lr = 0.5, bits = "none" } }'
    table = load_table(
        write(tmp_path, TABLE.replace('settings = { rule = "sgd", rule_options = { lr = 0.5 } }', row))
    )
    assert table.cell_settings(Cell("sgd", "low"), 0).rule_options == {"lr": 0.5, "bits": None}


def test_a_change_takes_the_place_of_what_excludes_it():
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
def test_the_tables_that_come_with_the_package_can_be_read(name):
    table = load_table(EXPERIMENTS / f"{name}.toml")
    assert table.cells()
    page = EXPERIMENTS / name / "README.md"
    if page.exists():
        assert page.read_text() == markdown(Results(page.with_name("results.jsonl"), table)), (
            f"{page.relative_to(EXPERIMENTS.parent)} is not what its results and table give: run adamas "
            f"reproduce {name} --seeds 1 --rows with a finished row"
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


# --- runs -----------------------------------------------------------------------------------------------


@pytest.mark.subprocess
def test_runs_are_kept_and_not_repeated_and_do_not_depend_on_the_number_of_jobs(
    tmp_path, table, real_processes
):
    seen = []
    with Results(tmp_path / "one" / "results.jsonl", table) as one:
        reproduce(one, rows=["sgd"], progress=seen.append)
        assert [p.done for p in seen] == [0, 1, 2, 3, 4]
        assert seen[0].left is None
        assert seen[-1].left == 0
        reproduce(one, progress=seen.append)
    assert seen[5].done == 4  # those of before
    assert len(one.lines) == 8
    with Results(tmp_path / "two" / "results.jsonl", table) as two:
        reproduce(two, jobs=2)
    assert without_seconds(two.lines) == without_seconds(one.lines)

    (line,) = one.find(Cell("adam", "high"), seed=1)
    assert line["settings"]["rule_options"] == {"lr": 0.02}
    assert line["steps"] == 4
    assert [step for step, _ in line["curve"]] == [2, 4]
    assert line["curve"][-1][1] == line["test_accuracy"]
    assert line["epsilon"]["pld"] < line["epsilon"]["rdp"]
    assert line["private"] is True
    assert len({line["test_accuracy"] for line in one.lines}) > 4


BAD = TABLE.replace("rule_options = { lr = 0.01 }", "rule_options = { lr = -1 }").replace(
    "seeds = 2", "seeds = 1"
)


@pytest.mark.subprocess
def test_failing_runs_are_named_and_all_others_are_made_and_kept(tmp_path, real_processes):
    table = load_table(write(tmp_path, BAD))
    failed = r"row 'adam', column 'low', seed 0 failed: .*lr=-1.*finished and kept"
    with Results(tmp_path / "results.jsonl", table) as kept, pytest.raises(RuntimeError, match=failed):
        reproduce(kept, jobs=2)
    lines = Results(tmp_path / "results.jsonl", table).lines
    names = sorted((line["row"], line["column"]) for line in lines)
    assert names == [("adam", "high"), ("sgd", "high"), ("sgd", "low")]


def test_a_run_that_is_finished_when_a_process_dies_is_kept(tmp_path, table, monkeypatch):
    monkeypatch.setattr(runner, "ProcessPoolExecutor", DyingPool)
    with (
        Results(tmp_path / "results.jsonl", table) as kept,
        pytest.raises(RuntimeError, match=r"ended before its time.*Finished runs are kept"),
    ):
        reproduce(kept, jobs=2)
    assert [(line["row"], line["column"]) for line in kept.lines] == [("adam", "low")]


def test_processes_start_with_settings_for_memory_that_the_caller_does_not_keep(tmp_path, table, monkeypatch):
    started = []

    class Recording(Pool):
        def submit(self, *arguments):
            started.append(dict(os.environ))
            return super().submit(*arguments)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", Recording)
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")  # the user's own
    with Results(tmp_path / "results.jsonl", table) as kept:
        reproduce(kept, rows=["sgd"], columns=["low"], seeds=1)
    assert started[0]["MALLOC_TOP_PAD_"] == str(1 << 28)
    assert started[0]["MALLOC_TRIM_THRESHOLD_"] == "7"
    assert "MALLOC_TOP_PAD_" not in os.environ
    assert os.environ["MALLOC_TRIM_THRESHOLD_"] == "7"


def test_a_row_that_is_named_twice_is_run_once(tmp_path, table):
    with Results(tmp_path / "results.jsonl", table) as kept:
        reproduce(kept, rows=["sgd", "sgd"], columns=["low", "low"], seeds=1)
        assert len(kept.lines) == 1
        with pytest.raises(ValueError, match="row 'sgd', column 'low', seed 0"):
            kept.add(kept.lines[0])


@pytest.mark.slow
def test_sampling_without_a_bound_by_rdp_keeps_its_run(tmp_path):
    text = TABLE.replace("delta = 1e-5", 'delta = 1e-5\nsampling = "truncated-poisson"\nmax_batch_size = 120')
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["sgd"], columns=["low"], seeds=1)
    assert kept.lines[0]["epsilon"]["rdp"] is None
    assert kept.lines[0]["epsilon"]["pld"] > 0
    assert "| ε (RDP) | – |" in markdown(kept)


KILLED = """
import sys
from pathlib import Path
from adamas.reproduce import Results, load_table, reproduce
if __name__ == "__main__":
    with Results(Path(sys.argv[2]), load_table(Path(sys.argv[1]))) as results:
        print("ready", flush=True)
        reproduce(results, jobs=2, progress=lambda p: print(p.done, flush=True))
"""


def children(pid):
    try:
        done = subprocess.run(
            ["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("ps is needed to see the processes")
    return [int(text) for text in done.stdout.split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.kills
def test_a_killed_process_loses_and_repeats_no_finished_run(tmp_path, real_processes):
    path = write(tmp_path, TABLE.replace("steps = 4", "steps = 40"))
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    target = tmp_path / "results.jsonl"
    command = [sys.executable, str(script), str(path), str(target)]
    for stop_after in ("1", "4"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.strip() == stop_after:
                break
        workers = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert workers
        end = time.monotonic() + 60
        while any(map(alive, workers)):
            assert time.monotonic() < end, "a worker outlives its parent"
            time.sleep(0.2)
    table = load_table(path)
    before = Results(target, table).lines
    assert 4 <= len(before) < 8
    with Results(target, table) as kept:
        reproduce(kept, jobs=2)
    assert kept.lines[: len(before)] == before
    with Results(tmp_path / "whole.jsonl", table) as whole:
        reproduce(whole, jobs=2)
    assert without_seconds(kept.lines) == without_seconds(whole.lines)


# --- the file of results --------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path, table):
    """A file with the first run of each row."""
    path = tmp_path / "results.jsonl"
    with Results(path, table) as kept:
        for row in table.rows:
            line = runner.finished_run(table.cell_settings(Cell(row, "low"), 0), 1, False)
            kept.add({"row": row, "column": "low", "seed": 0} | line)
    return path


def test_a_line_that_a_crash_cut_short_is_made_again(finished, table):
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
def test_results_of_another_version_say_what_differs(finished, tmp_path, old, new, message):
    other = load_table(write(tmp_path, TABLE.replace(old, new, 1)))
    before = finished.read_bytes()
    with pytest.raises(ValueError, match=rf"line (1|2), is from another version of paper/table: .*{message}"):
        Results(finished, other)
    assert finished.read_bytes() == before


def test_a_changed_default_of_a_rule_makes_results_old(finished, table, monkeypatch):
    def other(params, lr=0.1, momentum=0.5, weight_decay=0.0):
        raise AssertionError

    monkeypatch.setitem(results.RULES, "sgd", other)
    with pytest.raises(ValueError, match=r"rule.momentum=0.0 there and 0.5 now"):
        Results(finished, table)


def test_a_last_line_without_its_end_is_kept(finished, table):
    whole = finished.read_bytes()
    finished.write_bytes(whole[:-1])
    assert len(Results(finished, table).lines) == 2
    with Results(finished, table) as kept:
        assert len(kept.lines) == 2
    assert finished.read_bytes() == whole


def test_words_may_change_without_making_results_old(finished, tmp_path):
    other = load_table(write(tmp_path, TABLE.replace("Adam is better", "Adam is best")))
    assert len(Results(finished, other).lines) == 2


def test_lines_that_are_no_results_and_repeated_ones_are_refused(finished, table):
    whole = finished.read_text()
    finished.write_text(whole + "{}\n")
    with pytest.raises(ValueError, match="line 3, is not a result"):
        Results(finished, table)
    finished.write_text(whole + whole.splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"line 3: row 'sgd', column 'low', seed 0 comes twice"):
        Results(finished, table)


# --- what people see ------------------------------------------------------------------------------------


def test_the_page_has_means_deviations_and_published_values(tmp_path, table):
    with Results(tmp_path / "results.jsonl", table) as kept:
        reproduce(kept)
    values = [100 * line["test_accuracy"] for line in kept.find(Cell("sgd", "low"))]
    expected = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} (80.5 ± 0.1)"
    page = markdown(kept)
    assert f"| DP-SGD | {expected} |" in page
    assert "**Claim.** Adam is better." in page
    assert "adamas reproduce paper/table --jobs 2   # 8 runs, about" in page
    assert "| **corrected** |" in page
    spent = float(re.search(r"ε \(PLD\) \| ([0-9.]+) \|", page)[1])
    assert 0 <= spent - kept.lines[0]["epsilon"]["pld"] <= 1e-3
    assert "| ε, published | 1.50 | – |" in page
    assert "Seeds 0, 1" in page


def test_runs_that_are_not_private_are_marked(tmp_path):
    text = TABLE.replace("delta = 1e-5", "delta = 1e-5\nraw = true").replace(
        "evaluations = 2", "histograms = true"
    )
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["adam"], columns=["low"], seeds=1)
    (line,) = kept.lines
    assert line["private"] is False
    assert line["epsilon"] == "inf"
    page = markdown(kept)
    assert f"| DP-Adam | {100 * line['test_accuracy']:.1f} NOT PRIVATE | – |" in page
    assert "| ε (PLD) | – | – |" in page
    seen = line["moments"]["raw"]["statistics"]["private m"]
    assert f"| m̂ | {seen['min']:.3g} | {seen['q1']:.3g} |" in page


def test_validation_accuracy_is_not_called_test_accuracy(tmp_path):
    text = TABLE.replace('data = "digits"', 'data = "digits/validation"')
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["sgd"], columns=["low"], seeds=1)
    assert "Validation accuracy in percent" in markdown(kept)
    assert "est accuracy" not in markdown(kept)


def test_each_column_says_its_delta(tmp_path):
    text = TABLE.replace("{ noise_multiplier = 2.0 }", "{ noise_multiplier = 2.0, delta = 1e-4 }")
    with Results(tmp_path / "results.jsonl", load_table(write(tmp_path, text))) as kept:
        reproduce(kept, rows=["sgd"], seeds=1)
    assert "| δ | 1e-05 | 0.0001 |" in markdown(kept)
    assert "ε at δ" not in markdown(kept)


def test_published_numbers_keep_their_digits(tmp_path):
    table = load_table(write(tmp_path, TABLE.replace("[[80.5, 0.1], []]", "[[80.50, 0.31], [90.0]]")))
    with Results(tmp_path / "results.jsonl", table) as kept:
        reproduce(kept, rows=["sgd"], seeds=1)
    assert "(80.50 ± 0.31)" in markdown(kept)
    assert "(90.00)" in markdown(kept)
    assert summarize(kept.find(Cell("sgd", "low"))).deviation is None


def test_the_command_makes_a_table_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
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
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("results.jsonl"))


def test_titles_are_shown_as_they_are(tmp_path, monkeypatch, capsys):
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


def test_an_interrupted_table_still_has_its_page(tmp_path, monkeypatch):
    path = write(tmp_path)

    def interrupted(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_table(path.parent.parent, "paper/table", tmp_path / "out", progress=interrupted)
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 2
    assert "DP-SGD" in (tmp_path / "out" / "README.md").read_text()
