"""Refuses graphs that would be trained on as if their nodes were independent records.

Looks through attributes, containers, closures and methods of data set, model and loss. Tensors that were
read from terms are known by a mark. Plain tensors of features and edges are not: nothing tells them apart.
"""

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

from adamas.graphs.graph import Graph
from adamas.graphs.terms import MARK, Neighborhoods, NodeTerms

_REMEDY = (
    "one node is then in several examples, and its privacy is not that of a record. Pass NodeTerms(graph, "
    "max_degree=...) of adamas.graphs as it is: NodeTerms.from_pyg(data, ...) for PyTorch Geometric, "
    "NodeTerms.from_edges(...) for tensors."
)
_ITEMS, _OBJECTS = 100, 10_000
_PLAIN = (str, bytes, int, float, complex, type(None), CodeType, ModuleType, range)


def check_no_graph(dataset: object, model: object, loss: object) -> None:
    """Raises for a graph, and for anything that holds one or wraps `NodeTerms`."""
    given = {"model": model, "loss": loss}
    if type(dataset) is not NodeTerms:
        given["dataset"] = dataset
    for name, value in given.items():
        for found in _held(value):
            if isinstance(found, Graph | Neighborhoods) or _is_of_pyg(found) or _is_marked(found):
                where = "" if found is value else f" that holds a {type(found).__name__} of a graph"
                raise TypeError(
                    f"Expected {name} without a graph, got a {type(value).__name__}{where}: {_REMEDY}"
                )


def _is_marked(value: object) -> bool:
    """Tells whether a tensor was read from terms. Objects of other classes may claim every attribute."""
    return isinstance(value, Tensor) and hasattr(value, MARK)


def _is_of_pyg(value: object) -> bool:
    """Tells whether an object is a graph of PyTorch Geometric; its layers are no graphs."""
    return any(_module(one).startswith("torch_geometric.data.") for one in type(value).__mro__)


def _module(kind: type) -> str:
    """Returns the module of a class; compiled classes may have a descriptor in its place."""
    return str(kind.__module__)


def _held(value: object) -> Iterator[object]:
    """Yields an object and the objects that it reaches, each once."""
    seen: set[int] = set()
    left = [value]
    while left and len(seen) < _OBJECTS:
        one = left.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += _reached(one)


def _reached(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return []
    if isinstance(value, dict):
        return list(value.values())[:_ITEMS]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)[:_ITEMS]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        globals_ = [value.__globals__.get(name) for name in value.__code__.co_names]
        return [*cells, *(value.__defaults__ or ()), *globals_]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, type):
        return []
    own = _attribute(value, "__dict__")
    reached = list(own.values()) if isinstance(own, dict) else []
    for kind in type(value).__mro__:
        if _module(kind).partition(".")[0] in ("builtins", "torch", "adamas", "typing", "abc", "numpy"):
            continue
        names = vars(kind).get("__slots__", ())
        reached += [_attribute(value, name) for name in ([names] if isinstance(names, str) else names)]
        reached += [one for name, one in vars(kind).items() if not name.startswith("__") or callable(one)]
    call = _attribute(value, "__call__")
    return [*reached, call] if isinstance(call, MethodType) else reached


def _attribute(value: object, name: str) -> Any:
    """Returns an attribute, or None: objects of other packages may raise anything for one that is missing."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
