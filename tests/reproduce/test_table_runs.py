"""Runs of a table: made once, kept when others fail, and equal for any number of processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adamas.reproduce import Results, load_table, reproduce, runner
from adamas.reproduce.render import markdown
from adamas.reproduce.table import Cell
from tests.support.small_tables import TABLE, DyingPool, Pool, without_seconds, write


@pytest.mark.subprocess
def test_finished_runs_are_not_repeated_and_do_not_depend_on_the_number_of_jobs(
    tmp_path, table, real_processes
):
    seen = []
    with Results(tmp_path / "one" / "results.jsonl", table) as one:
        reproduce(one, rows=["sgd"], progress=seen.append)
        assert [p.done for p in seen] == [0, 1, 2, 3, 4]
        assert seen[0].left is None
        assert seen[-1].left == 0
        reproduce(one, progress=seen.append)
    assert seen[5].done == 4  # the runs of the first call
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
def test_a_failing_run_is_named_and_all_others_are_kept(tmp_path, real_processes):
    table = load_table(write(tmp_path, BAD))
    failed = r"row 'adam', column 'low', seed 0 failed: .*lr=-1.*finished and kept"
    with Results(tmp_path / "results.jsonl", table) as kept, pytest.raises(RuntimeError, match=failed):
        reproduce(kept, jobs=2)
    lines = Results(tmp_path / "results.jsonl", table).lines
    names = sorted((line["row"], line["column"]) for line in lines)
    assert names == [("adam", "high"), ("sgd", "high"), ("sgd", "low")]


def test_a_run_finished_before_a_process_dies_is_kept(tmp_path, table, monkeypatch):
    monkeypatch.setattr(runner, "ProcessPoolExecutor", DyingPool)
    with (
        Results(tmp_path / "results.jsonl", table) as kept,
        pytest.raises(RuntimeError, match=r"ended before its time.*Finished runs are kept"),
    ):
        reproduce(kept, jobs=2)
    assert [(line["row"], line["column"]) for line in kept.lines] == [("adam", "low")]


def test_only_the_new_processes_get_the_malloc_settings(tmp_path, table, monkeypatch):
    started = []

    class Recording(Pool):
        def submit(self, *arguments):
            started.append(dict(os.environ))
            return super().submit(*arguments)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", Recording)
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")  # set by the user
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
def test_a_run_without_an_rdp_bound_is_kept(tmp_path):
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
    """Returns the ids of the processes that `pid` started."""
    try:
        done = subprocess.run(
            ["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("ps is needed to list the processes")
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
