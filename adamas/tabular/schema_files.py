"""Reads and begins schema files: the public description of a table in TOML or JSON."""

import json
import tomllib
from pathlib import Path
from typing import Any

from adamas.tabular.files import column_names, column_types

_KEYS = ("target", "classes", "target_bounds", "bounds", "categories")

_HEAD = """\
# Public knowledge about {name}. Write no value here that you read off the data.
# Columns that are not listed below are not read.

target = ""  # one of the columns
classes = []  # all labels of the target, or "public" if their set in the file is public
# target_bounds = [0, 1]  # instead of classes, if the target is a number
"""


def read_schema(path: str | Path) -> dict[str, Any]:
    """Returns the options of `load_table` that a schema file holds.

    Raises:
        ValueError: If it is no schema.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected a schema in {path}, found no such file.")
    text = path.read_text(encoding="utf-8")
    try:
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"Expected {path} to hold {path.suffix[1:].upper()}: {error}.") from error
    if not isinstance(found, dict) or not set(found) <= set(_KEYS):
        raise ValueError(f"Expected a schema of {', '.join(_KEYS)} in {path}, got {list(found)}.")
    return found


def skeleton(path: str | Path) -> str:
    """Returns a schema to fill in, from names and types of the columns of a table alone."""
    types = column_types(path)
    lists: dict[str, list[str]] = {"number": [], "text": []}
    for name in column_names(path):
        key = json.dumps(name, ensure_ascii=False)
        if types.get(name, "number") == "number":
            lists["number"].append(f"# {key} = [0, 1]")
        if types.get(name, "text") == "text":
            lists["text"].append(f'# {key} = ["a", "b"]')
    return "\n".join(
        [
            _HEAD.format(name=Path(path).name),
            "[bounds]  # usual ranges of numbers; values outside are clipped, and tight ranges train better",
            *lists["number"],
            "",
            "[categories]  # the known values of each text; all others share one further category",
            *lists["text"],
            "",
        ]
    )
