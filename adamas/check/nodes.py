"""Plants another record of a node in the graph of a run, and sees how much of a release it moves."""

import torch
from torch import Tensor

from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.check.replay import joined, release_of, silenced, whitened_sums
from adamas.graphs import Graph, NodeTerms
from adamas.run.loop import PrivateRun

_ROUNDING = 1e-3  # of the sums in the model's number types, relative to what one node may move


def planted_nodes(replay: Replay) -> Outcome:
    """Changes the records of nodes that send most, and of nodes spread over the graph."""
    run = replay.door
    terms = run.loader.dataset
    if not isinstance(terms, NodeTerms):
        return NOT_APPLICABLE, "the examples are not nodes of a graph"
    most, farthest, unit = 0, 0.0, 2 * terms.terms_per_node
    quiet = run._replaced(noise=silenced(run.noise))
    nodes = _chosen(terms, len(replay.few()))
    for node in replay.in_time(nodes):
        other = terms.on(_planted(terms.graph, node))
        changed = _changed(terms, other)
        most = max(most, len(changed))
        if len(changed):
            before, after = (_sum(quiet, data, changed) for data in (terms, other))
            farthest = max(farthest, float((after - before).norm()))
    seen = (
        f"other records of {len(nodes)} nodes changed up to {most} terms, accounted for "
        f"{terms.terms_per_node}, and moved the sum by up to {farthest / unit:.3f} of what the noise hides"
    )
    return (PASS if most <= terms.terms_per_node and farthest <= unit * (1 + _ROUNDING) else FAIL), seen


def _chosen(terms: NodeTerms, count: int) -> list[int]:
    sent = torch.bincount(terms.graph.edges[0], minlength=terms.graph.nodes)
    busiest = sent.argsort(descending=True, stable=True)[:count].tolist()
    spread = terms.nodes[torch.linspace(0, len(terms) - 1, min(count, len(terms))).long()].tolist()
    return list(dict.fromkeys([*busiest, *spread]))


def _planted(graph: Graph, node: int) -> Graph:
    """Returns the graph with another record of a node, which sends nothing."""
    features, labels = graph.features.clone(), graph.labels.clone()
    features[node] = -features[node] - 1
    known = graph.labels[graph.train]
    labels[node] = known.min() + (known.max() - labels[node]).clamp(min=0)
    return Graph(features, labels, graph.edges[:, graph.edges[0] != node], graph.train)


def _changed(before: NodeTerms, after: NodeTerms) -> list[int]:
    """Returns the places of the terms that differ."""
    found = []
    for start in range(0, len(before), 1000):
        pairs = zip(before[start : start + 1000], after[start : start + 1000], strict=True)
        # NaN equals NaN.
        differs = torch.stack(
            [((a != b) & ((a == a) | (b == b))).reshape(len(a), -1).any(1) for a, b in pairs]
        ).any(0)
        found += (start + differs.nonzero().flatten()).tolist()
    return found


def _sum(run: PrivateRun, terms: NodeTerms, places: list[int]) -> Tensor:
    """Returns the whitened sum of some terms of a data set."""
    other = run._replaced(loader=run.loader.on(terms))
    return joined(
        whitened_sums(other, release_of(other, places, max(0, other.steps_done - 1)), other.geometry())
    )
