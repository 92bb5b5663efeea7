"""Read the files of runs and tables from which reports are made."""

import json

QUICK = ["--model", "linear", "--batch-size", "64", "--noise-multiplier", "1.5", "--seed", "1"]
EVIL = '<script>alert("x")</script>&$\\frac{1}'


def lines_of(folder):
    text = (folder / "diagnostics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def read_lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
