"""ogbn-arxiv of the Open Graph Benchmark (Hu et al., 2020), from the folder that its package `ogb` writes.

References:
    Weihua Hu, Matthias Fey, Marinka Zitnik, Yuxiao Dong, Hongyu Ren, Bowen Liu, Michele Catasta, Jure
    Leskovec. "Open Graph Benchmark: Datasets for Machine Learning on Graphs." NeurIPS 2020. arXiv:2005.00687.
"""

import gzip
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from adamas.data.graph import GraphData, distinct, undirected, with_terms
from adamas.data.local import find, local_folder

_PARTS = ("train", "valid", "test")


class Counts(NamedTuple):
    """Sizes of a graph; `edges` are the lines of its file, before directions are added."""

    nodes: int
    features: int
    classes: int
    edges: int
    train: int
    validation: int
    test: int


_ARXIV = Counts(169_343, 128, 40, 1_166_243, 90_941, 29_799, 48_603)


@with_terms
def ogbn_arxiv(*, directed: bool = False) -> GraphData:
    """Loads 169,343 papers of computer science on arXiv in 40 classes, split by year.

    The folder `ogbn_arxiv` must be in the folder that `ADAMAS_DATA` names, or in `./data`. Every edge has
    both directions, as in Daigavane et al., arXiv:2111.15521.

    Args:
        directed: Whether edges go only from a paper to those that it cites.

    Raises:
        RuntimeError: If the folder is missing, incomplete or damaged, with the remedy.
    """
    folder = local_folder("ogbn_arxiv", _files("time"), fetched=False)
    if folder is None:
        raise RuntimeError(
            "ogbn-arxiv cannot be fetched. Put OGB's folder ogbn_arxiv, with its raw/ and split/, into "
            "./data or into the folder that the environment variable ADAMAS_DATA names. The package ogb "
            "writes it: ogb.nodeproppred.NodePropPredDataset('ogbn-arxiv', root='data')."
        )
    return read_ogbn(folder, "ogbn-arxiv", "time", directed=directed, expected=_ARXIV)


def read_ogbn(
    folder: Path, name: str, split: str, *, directed: bool = False, expected: Counts | None = None
) -> GraphData:
    """Reads a graph from OGB's CSV files, plain or with `.gz`.

    Args:
        folder: The folder with `raw/` and `split/`.
        name: Name of the graph.
        split: Folder in `split/`.
        directed: Whether each edge keeps its one direction.
        expected: Sizes that the graph must have; None only checks that the files agree.

    Raises:
        RuntimeError: If a file is damaged or does not fit the others, with its name.
    """
    edges = _read(folder, "raw/edge.csv", np.int64, 2).T
    features = _read(folder, "raw/node-feat.csv", np.float32, None)
    labels = _read(folder, "raw/node-label.csv", np.int64, 1)[:, 0]
    parts = [_read(folder, f"split/{split}/{part}.csv", np.int64, 1)[:, 0] for part in _PARTS]
    nodes = int(_read(folder, "raw/num-node-list.csv", np.int64, 1).sum())
    lines = int(_read(folder, "raw/num-edge-list.csv", np.int64, 1).sum())
    for file, found, count in (
        ("raw/node-feat.csv", len(features), nodes),
        ("raw/node-label.csv", len(labels), nodes),
        ("raw/edge.csv", edges.shape[1], lines),
    ):
        if found != count:
            raise RuntimeError(
                f"The file {file} in {folder} has {found:,} lines, but raw/num-*-list.csv says {count:,}. "
                "Download the folder again."
            )
    for file, numbers in (
        ("raw/edge.csv", edges),
        *((f"split/{split}/{part}.csv", values) for part, values in zip(_PARTS, parts, strict=True)),
    ):
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < nodes:
            raise RuntimeError(
                f"The file {file} in {folder} names nodes from {numbers.min()} to {numbers.max()}, but there "
                f"are {nodes:,} nodes. Download the folder again."
            )
    if labels.min() < 0:
        raise RuntimeError(f"The file raw/node-label.csv in {folder} has a label below 0. Download it again.")
    if not np.isfinite(features).all():
        raise RuntimeError(
            f"The file raw/node-feat.csv in {folder} has values that are not finite. Download it again."
        )
    if len(np.unique(np.concatenate(parts))) < sum(map(len, parts)):
        raise RuntimeError(f"The files of split/{split} in {folder} name a node twice. Download them again.")
    found = Counts(nodes, features.shape[1], int(labels.max()) + 1, lines, *map(len, parts))
    if expected is not None and found != expected:
        raise RuntimeError(f"Expected {name} in {folder} with {expected}, found {found}.")
    train, validation, test = (torch.from_numpy(np.sort(part)) for part in parts)
    pairs = torch.from_numpy(edges)
    return GraphData.of(
        name,
        torch.from_numpy(features),
        torch.from_numpy(labels),
        distinct(pairs) if directed else undirected(pairs),
        (train, validation, test),
        classes=found.classes,
    )


def _files(split: str) -> list[str]:
    raw = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
    return [*(f"raw/{name}.csv" for name in raw), *(f"split/{split}/{part}.csv" for part in _PARTS)]


def _read(folder: Path, name: str, dtype: Any, columns: int | None) -> np.ndarray:
    """Reads a table of numbers, with this many columns if it is not None."""
    file = find(folder, name)
    if file is None:
        raise RuntimeError(f"The folder {folder} has no file {name}. Download the folder again.")
    try:
        with (
            gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as stream,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", UserWarning)  # of a file without lines, which is refused below
            values = np.loadtxt(stream, dtype=dtype, delimiter=",", ndmin=2)
    except (OSError, EOFError, UnicodeDecodeError, ValueError, zlib.error) as error:
        raise RuntimeError(
            f"The file {file} is damaged or no table of numbers: {error}. Download it again."
        ) from error
    if not len(values) or (columns is not None and values.shape[1] != columns):
        raise RuntimeError(
            f"Expected {columns or 'some'} numbers on each line of {file}, found a table of shape "
            f"{values.shape}. Download it again."
        )
    return values
