"""Read the files of runs and tables that a report shows."""

import json

# Options of `adamas train` for a run of a second.
QUICK = ["--model", "linear", "--batch-size", "64", "--noise-multiplier", "1.5", "--seed", "1"]
# A text that breaks a page unless it is escaped, in HTML, TeX and attributes.
EVIL = '<script>alert("x")</script>&$\\frac{1}'


def diagnostics_of(folder):
    """Returns the lines of a run's diagnostics.jsonl."""
    text = (folder / "diagnostics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def results_of(folder):
    """Returns the lines of a table's results.jsonl."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
