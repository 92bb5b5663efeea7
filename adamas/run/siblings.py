"""Lists the other files of a lineage beside each checkpoint of a run.

A run that was saved in several files journals its releases beside each of them. A run that continues one file
must also write the journals of the others, because another file may be continued later. So a file with
siblings has a list of them, `<name>.siblings`, which is written before a sibling is.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from adamas._storage.files import replace_text


def write_siblings(paths: Iterable[Path]) -> None:
    """Writes beside each of these files a list of the others."""
    known = list(dict.fromkeys(paths))
    for path in known:
        list_file = _list_file(path)
        others = [other for other in known if other != path]
        if others:
            plain = [[os.path.relpath(other, path.parent), str(other)] for other in others]
            list_file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(list_file, json.dumps(plain))
        else:
            list_file.unlink(missing_ok=True)


def siblings_of(path: Path) -> list[Path]:
    """Returns the existing siblings of a file: at their relative path, or else at their absolute one."""
    try:
        plain = json.loads(_list_file(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError:
        raise ValueError(
            f"Expected {_list_file(path)} to list the other files of this run, found a damaged file. Restore "
            "it from a backup."
        ) from None
    found = []
    for relative, absolute in plain:
        places = [Path(os.path.normpath(path.parent / relative)), Path(absolute)]
        existing = [place for place in places if place.is_file()]
        found += existing[:1]
    return found


def forget_siblings(path: Path) -> None:
    """Deletes the list of a file that was deleted."""
    with suppress(FileNotFoundError):
        _list_file(path).unlink()


def _list_file(path: Path) -> Path:
    return path.with_name(path.name + ".siblings")
