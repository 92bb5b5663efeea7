"""Refuses graphs that would be trained on as if their nodes were independent records."""

from collections.abc import Iterator
from typing import Any

from adamas.graphs.graph import Graph
from adamas.graphs.terms import Neighborhoods, NodeTerms

_REMEDY = (
    "one node is then in several examples, and its privacy is not that of a record. Pass NodeTerms(graph, "
    "max_degree=...) of adamas.graphs as it is: NodeTerms.from_pyg(data, ...) for PyTorch Geometric, "
    "NodeTerms.from_edges(...) for tensors."
)
_DEPTH, _ITEMS = 4, 100


def check_no_graph(dataset: object) -> None:
    """Raises for a graph, and for a data set that holds one or wraps `NodeTerms`."""
    if type(dataset) is NodeTerms:
        return
    for found in _held(dataset, _DEPTH):
        if isinstance(found, Graph | Neighborhoods) or _is_of_pyg(found):
            where = "" if found is dataset else f" that holds a {type(found).__name__}"
            raise TypeError(
                f"Expected dataset to have one example for each record, got a "
                f"{type(dataset).__name__}{where}: {_REMEDY}"
            )


def _is_of_pyg(value: object) -> bool:
    return any(one.__module__.startswith("torch_geometric.") for one in type(value).__mro__)


def _held(value: Any, depth: int) -> Iterator[Any]:
    """Yields an object and the objects in its attributes and containers, to a depth."""
    yield value
    if depth == 0:
        return
    inner = list(value.values()) if isinstance(value, dict) else []
    if isinstance(value, list | tuple):
        inner += value[:_ITEMS]
    elif type(value).__module__ != "builtins":
        attributes = getattr(value, "__dict__", None)
        inner += list(attributes.values()) if isinstance(attributes, dict) else []
    for one in inner[:_ITEMS]:
        if not isinstance(one, str | bytes | int | float | complex | type(None)):
            yield from _held(one, depth - 1)
