"""Compares everything that Python code can remember: the values of all objects that it reaches."""

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from adamas._guards.kept_values import (
    MISSING,
    WHOLE,
    Dotted,
    Items,
    Named,
    TensorValues,
    Values,
    contents,
    pickled,
)
from adamas._guards.kinds import (
    ATOMS,
    CODE,
    cached_in,
    is_library,
    is_opaque,
    is_quiet,
    made_by_hooks,
    names_in,
    warnings_shown,
)
from adamas._nests import slots_of
from adamas._streams import GENERATORS, generator_state
from adamas.errors import UnsupportedError

_MOST = 1_000_000  # objects that are followed
_TABLES = ("_parameters", "_buffers", "_modules")
_OF_CLASSES = {"__dict__", "__weakref__", "_abc_impl", "__doc__", "__module__", "__qualname__"}


class Memory:
    """Keeps the values of everything that some objects reach, to compare with later.

    It follows attributes, slots, nested containers, the user's classes, closures, defaults, and the global
    variables and attributes of the user's modules that code names, also through the functions that it calls.
    It does not follow the code of the standard library, torch and other well-known packages, nor what code
    reaches by computed names (`globals()[name]`).

    Args:
        roots: Where to start, by name.
        known: Objects to leave out.
        long: Whether all values of long tensors are compared; otherwise torch's count of changes is.
        draws: Whether code may draw from random generators.

    Raises:
        UnsupportedError: If an object is reached whose state cannot be read, such as a generator.
    """

    def __init__(
        self, roots: Mapping[str, object], *, known: Iterable[object] = (), long: bool, draws: bool = False
    ) -> None:
        self._long, self._draws = long, draws
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that an id stands for one object
        self._kept: list[Values] = []
        self.generators: list[Any] = []
        """The random generators that were found."""
        for item in known:
            self._seen[id(item)] = item
        self._attributes: set[str] = set()  # that some code names
        modules: dict[str, ModuleType] = {}
        todo = deque(roots.items())
        entered: tuple[int, int] | None = None
        while todo or (len(modules), len(self._attributes)) != entered:
            if not todo:
                entered = len(modules), len(self._attributes)
                for module in list(modules.values()):
                    todo.extend(self._enter_module(module, frozenset(self._attributes)))
                continue
            path, value = todo.popleft()
            if isinstance(value, ATOMS) or id(value) in self._seen:
                continue
            if len(self._seen) > _MOST:
                raise UnsupportedError(
                    f"{path!r} is one of more than {_MOST:,} objects that the code refers to: too many to "
                    "see whether they change. Refer to less, such as to the one value that is needed."
                )
            self._seen[id(value)] = value
            if isinstance(value, ModuleType):
                if not is_library(value.__name__):
                    modules[value.__name__] = value
            else:
                todo.extend(self._enter(path, value))

    def renew(self) -> bool:
        """Updates the values of tensors and generators; False if anything else changed."""
        if any(kept.change() is not None for kept in self._kept if not kept.renewable):
            return False
        for kept in self._kept:
            if kept.renewable:
                kept.take()
        return True

    def change(self) -> str | None:
        """Returns the name of something that has changed; None if nothing has."""
        for kept in self._kept:
            if (name := kept.change()) is not None:
                return name
        return None

    def _enter(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Keeps the values of one object, and yields the objects that it refers to."""
        if isinstance(value, GENERATORS):
            self.generators.append(value)
            if not self._draws:
                self._kept.append(Values(path, functools.partial(generator_state, value), renewable=True))
            return
        if isinstance(value, CODE):
            yield f"{path}.__self__", getattr(value, "__self__", None)
            return
        if is_quiet(value):
            return
        if isinstance(value, weakref.ReferenceType):
            yield path, value()
            return
        if isinstance(value, Tensor):
            self._kept.append(TensorValues(path, value, long=self._long))
            yield f"{path}.grad", value.grad if value.is_leaf else None
        elif isinstance(value, np.ndarray) and value.dtype != object:
            if value.flags.writeable or value.base is not None:
                step = 1 if self._long else max(1, value.size // WHOLE)
                self._kept.append(Values(path, lambda: value.reshape(-1)[::step].tobytes(), renewable=True))
            return
        elif isinstance(value, np.ndarray):
            self._kept.append(Items(path, value, lambda: (tuple(value.reshape(-1)),)))
            yield from ((f"{path}[{i}]", item) for i, item in enumerate(value.reshape(-1)))
            return
        elif isinstance(value, FunctionType):
            yield from self._enter_function(path, value)
        elif isinstance(value, MethodType):
            yield f"{path}.__self__", value.__self__
            yield path, value.__func__
            return
        elif isinstance(value, CellType):
            yield from self._hold(path, functools.partial(contents, value), {"": path})
            return
        elif isinstance(value, staticmethod | classmethod | functools.cached_property | property):
            parts = ("__func__", "func", "fget", "fset", "fdel")
            yield from ((path, getattr(value, part, None)) for part in parts)
            return
        elif isinstance(value, functools.partial):
            yield path, value.func
            yield from ((f"{path}({i})", part) for i, part in enumerate(value.args))
            yield from ((f"{path}({key}=)", part) for key, part in value.keywords.items())
        elif isinstance(value, functools._lru_cache_wrapper):
            self._kept.append(Values(f"{path}.cache_info()", lambda: value.cache_info().currsize))
            yield path, value.__wrapped__
            for cached in cached_in(value):
                yield f"{path}()", cached
        elif isinstance(value, type):
            if not is_library(value.__module__):
                yield from self._hold_attributes(
                    path, lambda: {k: v for k, v in vars(value).items() if k not in _OF_CLASSES}
                )
            return
        elif isinstance(value, MappingProxyType):
            yield path, dict(value)
            return
        elif isinstance(value, dict | list | tuple | set | frozenset | deque):
            yield from self._hold_items(path, value)
        elif is_opaque(value):
            self._kept.append(pickled(path, value))
            return
        yield from self._enter_instance(path, value)

    def _enter_instance(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Enters attributes and slots of an object, and those of its classes that are the user's."""
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            hidden: set[str] = set()
            if isinstance(value, nn.Module):
                hidden = {*made_by_hooks(value), *_TABLES}
                for table in _TABLES:
                    yield from self._hold_attributes(path, functools.partial(own.__getitem__, table))
            if (shown := warnings_shown(value)) is not None:
                hidden.add(shown)
                self._kept.append(Values(f"{path}.{shown}", lambda: _no_flags(own[shown])))
            yield from self._hold_attributes(
                path, (lambda: {k: v for k, v in own.items() if k not in hidden}) if hidden else lambda: own
            )
        slots = [name for kind in type(value).__mro__ for name in slots_of(kind)]
        if slots:
            yield from self._hold_attributes(path, lambda: {n: getattr(value, n, MISSING) for n in slots})
        for kind in type(value).__mro__:
            if not is_library(kind.__module__):
                yield kind.__qualname__.rpartition("<locals>.")[2], kind

    def _enter_function(self, path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
        free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if is_library(function.__module__):  # a decorator's, around a function of the user's
            yield from ((path, cell) for _, cell in free)
            return
        names, attributes, modules = names_in(function.__code__)
        self._attributes |= attributes
        places = function.__globals__
        yield from self._hold("", lambda: {n: places.get(n, MISSING) for n in names}, {n: n for n in names})
        yield from ((name, sys.modules.get(name)) for name in modules)
        yield from ((f"{path}.{name}".removeprefix("."), cell) for name, cell in free)
        yield from self._hold(
            path, lambda: {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}, {}
        )

    def _enter_module(self, module: ModuleType, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """Enters the attributes of a user's module that some code names."""
        own, short = vars(module), module.__name__.rpartition(".")[2]
        inside = [name for name in names if name in own]
        return self._hold(
            "", lambda: {n: own.get(n, MISSING) for n in inside}, {n: f"{short}.{n}" for n in inside}
        )

    def _hold_items(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self._kept.append(Items(path, value, lambda: (tuple(value), tuple(value.values()))))
            for key, item in value.items():
                if not isinstance(item, ATOMS):
                    yield f"{path}[{key!r}]", item
            yield from ((f"{path}.keys()", key) for key in value if not isinstance(key, ATOMS))
        else:
            self._kept.append(Items(path, value, lambda: (tuple(value),)))
            for i, item in enumerate(value):
                if not isinstance(item, ATOMS):
                    yield f"{path}[{i}]", item

    def _hold_attributes(self, path: str, read: Callable[[], Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
        return self._hold(path, read, Dotted(path))

    def _hold(
        self, path: str, read: Callable[[], Mapping[str, Any]], names: Mapping[str, str]
    ) -> Iterator[tuple[str, Any]]:
        kept = Named(path, read, names)
        self._kept.append(kept)
        yield from kept.children()


def _no_flags(items: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in items.items() if not isinstance(value, bool)}
