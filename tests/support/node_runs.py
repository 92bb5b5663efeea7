"""Private runs on a small graph whose labels depend on a node and on its neighbours."""

import torch
from torch import nn
from torch.nn import functional as F

import adamas
from adamas import rules
from adamas.graphs import Graph, NodeTerms

NODES, FEATURES = 300, 6


def noisy_graph(nodes=NODES, edges=900, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(nodes, FEATURES, generator=generator)
    pairs = torch.randint(0, nodes, (2, edges), generator=generator)
    pairs = torch.cat([pairs, pairs.flip(0)], 1)
    sums = features[:, 0].clone().index_add_(0, pairs[1], features[pairs[0], 0])
    return Graph(features, (sums > 0).long(), pairs, torch.rand(nodes, generator=generator) < 0.7)


class Reader(nn.Module):
    """One layer on the node, and one on the sum of its neighbours."""

    def __init__(self):
        super().__init__()
        self.own, self.others = nn.Linear(FEATURES, 2), nn.Linear(FEATURES, 2)

    def forward(self, features, mask):
        rows = features * mask[..., None]
        return self.own(rows[:, 0]) + self.others(rows[:, 1:].sum(1))


def loss(model, batch):
    *inputs, labels = batch
    return F.cross_entropy(model(*inputs), labels, reduction="none")


def node_run(terms=None, rule=rules.AdamBC, **options):
    terms = terms or NodeTerms(noisy_graph(), max_degree=3)
    torch.manual_seed(0)
    model = Reader()
    given = {"batch_size": 40, "steps": 12, "noise_multiplier": 10.0, "delta": 1e-4, "seed": 0}
    return adamas.make_private(
        model, rule(model.parameters()), terms, loss, progress=False, **given | options
    )


def node_run_of_rank(rank, odd):
    """Makes a data-parallel run with other terms on rank 1, and returns the number of terms of a node."""
    terms = NodeTerms(noisy_graph(), **{"max_degree": 3} | (odd if rank else {}))
    return node_run(terms, distributed=True).loader.sampler.terms


def terms_of(**options):
    return NodeTerms(noisy_graph(), **{"max_degree": 3} | options)


def graph_with(**changed):
    graph = noisy_graph()
    parts = {name: getattr(graph, name) for name in ("features", "labels", "edges", "train")}
    return Graph(**parts | changed)


def finished(run):
    list(run)
    return run.epsilon()
