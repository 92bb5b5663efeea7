"""What Python code can remember: the values of all objects that it reaches."""

import dis
import functools
import gc
import logging
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import is_
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from adamas._nests import slots_of
from adamas._streams import GENERATORS, generator_state
from adamas.errors import UnsupportedError

# Code and classes of these are trusted to keep nothing; whatever else is installed counts as the user's.
_LIBRARIES = sys.stdlib_module_names | {
    *("adamas", "torch", "torchvision", "torchaudio", "functorch", "numpy", "scipy", "sklearn", "pandas"),
    *("transformers", "tokenizers", "datasets", "safetensors", "accelerate", "peft", "timm", "einops"),
    *("numba", "matplotlib", "tqdm", "PIL", "dp_accounting"),
}
_MOST = 1_000_000  # objects that are followed
_WHOLE = 16384  # numbers of a tensor that are compared where long ones need not be
_DEPTH = 20  # how deep values are compared that were exchanged for others

_ATOMS = (
    *(int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), range, slice),
    *(np.generic, np.dtype, torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_CODE = (
    BuiltinFunctionType,
    CodeType,
    type(int.__add__),
    type((1).__add__),
    type(str.join),
    type(dict.fromkeys),
)
_LOCKS = (type(threading.Lock()), type(threading.RLock()), logging.Logger, logging.Handler)
# Objects of C's whose contents are followed all the same.
_SHOWN = (dict, list, tuple, set, frozenset, deque, Tensor, np.ndarray, nn.Module, BaseException, type)
_COMPILED = ("torch", "numpy", "tokenizers")
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_TABLES = ("_parameters", "_buffers", "_modules")
_MISSING = object()
_GLOBALS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"}
_OF_CLASSES = {"__dict__", "__weakref__", "_abc_impl", "__doc__", "__module__", "__qualname__"}


class Memory:
    """The values of all that some objects reach, to compare with later.

    Followed are attributes, slots, containers of any nesting, classes of the user's, closures, defaults, and
    the global variables and attributes of the user's modules that code names, through the functions that it
    names in turn. Not followed is the code of the standard library, torch and other well-known packages, nor
    what code reaches by computed names (`globals()[name]`).

    Args:
        roots: Where to start, by name.
        known: Objects that somebody else looks after.
        long: Whether long tensors are compared in all of their values; otherwise by torch's count of changes.
        draws: Whether random generators may be drawn from.

    Raises:
        UnsupportedError: If an object is reached whose state nobody can look at, such as a generator.
    """

    def __init__(
        self, roots: Mapping[str, object], *, known: Iterable[object] = (), long: bool, draws: bool = False
    ) -> None:
        self._long, self._draws = long, draws
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that an id stands for one object
        self._kept: list[_Values] = []
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
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            if len(self._seen) > _MOST:
                raise UnsupportedError(
                    f"{path!r} is one of more than {_MOST:,} objects that the code refers to: too many to "
                    "see whether they change. Refer to less, such as to the one value that is needed."
                )
            self._seen[id(value)] = value
            if isinstance(value, ModuleType):
                if not _is_library(value.__name__):
                    modules[value.__name__] = value
            else:
                todo.extend(self._enter(path, value))

    def renew(self) -> bool:
        """Takes the values of tensors and generators anew; False if something else changed."""
        if any(kept.change() is not None for kept in self._kept if not kept.renewable):
            return False
        for kept in self._kept:
            if kept.renewable:
                kept.take()
        return True

    def change(self) -> str | None:
        """The name of something that has another value than before."""
        for kept in self._kept:
            if (name := kept.change()) is not None:
                return name
        return None

    def _enter(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Keeps the values of one object, and gives the objects that it refers to."""
        if isinstance(value, GENERATORS):
            self.generators.append(value)
            if not self._draws:
                self._kept.append(_Values(path, functools.partial(generator_state, value), renewable=True))
            return
        if isinstance(value, _CODE):
            yield f"{path}.__self__", getattr(value, "__self__", None)
            return
        if _is_quiet(value):
            return
        if isinstance(value, weakref.ReferenceType):
            yield path, value()
            return
        if isinstance(value, Tensor):
            self._kept.append(_TensorValues(path, value, long=self._long))
            yield f"{path}.grad", value.grad if value.is_leaf else None
        elif isinstance(value, np.ndarray) and value.dtype != object:
            if value.flags.writeable or value.base is not None:
                step = 1 if self._long else max(1, value.size // _WHOLE)
                self._kept.append(_Values(path, lambda: value.reshape(-1)[::step].tobytes(), renewable=True))
            return
        elif isinstance(value, np.ndarray):
            self._kept.append(_Items(path, value, lambda: (tuple(value.reshape(-1)),)))
            yield from ((f"{path}[{i}]", item) for i, item in enumerate(value.reshape(-1)))
            return
        elif isinstance(value, FunctionType):
            yield from self._enter_function(path, value)
        elif isinstance(value, MethodType):
            yield f"{path}.__self__", value.__self__
            yield path, value.__func__
            return
        elif isinstance(value, CellType):
            yield from self._hold(path, functools.partial(_cell, value), {"": path})
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
            self._kept.append(_Values(f"{path}.cache_info()", lambda: value.cache_info().currsize))
            yield path, value.__wrapped__
            for cached in _referents(value):
                yield f"{path}()", cached
        elif isinstance(value, type):
            if not _is_library(value.__module__):
                yield from self._hold_attributes(
                    path, lambda: {k: v for k, v in vars(value).items() if k not in _OF_CLASSES}
                )
            return
        elif isinstance(value, MappingProxyType):
            yield path, dict(value)
            return
        elif isinstance(value, dict | list | tuple | set | frozenset | deque):
            yield from self._hold_items(path, value)
        elif _is_opaque(value):
            self._kept.append(_pickled(path, value))
            return
        yield from self._enter_instance(path, value)

    def _enter_instance(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Attributes and slots of an object, and the classes of the user's that it belongs to."""
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            hidden: set[str] = set()
            if isinstance(value, nn.Module):
                hidden = {*made_by_hooks(value), *_TABLES}
                for table in _TABLES:
                    yield from self._hold_attributes(path, functools.partial(own.__getitem__, table))
            yield from self._hold_attributes(
                path, (lambda: {k: v for k, v in own.items() if k not in hidden}) if hidden else lambda: own
            )
        slots = [name for kind in type(value).__mro__ for name in slots_of(kind)]
        if slots:
            yield from self._hold_attributes(path, lambda: {n: getattr(value, n, _MISSING) for n in slots})
        for kind in type(value).__mro__:
            if not _is_library(kind.__module__):
                yield kind.__qualname__.rpartition("<locals>.")[2], kind

    def _enter_function(self, path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
        free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if _is_library(function.__module__):  # a decorator's, around a function of the user's
            yield from ((path, cell) for _, cell in free)
            return
        names, attributes, modules = _names(function.__code__)
        self._attributes |= attributes
        places = function.__globals__
        yield from self._hold("", lambda: {n: places.get(n, _MISSING) for n in names}, {n: n for n in names})
        yield from ((name, sys.modules.get(name)) for name in modules)
        yield from ((f"{path}.{name}".removeprefix("."), cell) for name, cell in free)
        yield from self._hold(
            path, lambda: {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}, {}
        )

    def _enter_module(self, module: ModuleType, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """The attributes of a module of the user's that some code names."""
        own, short = vars(module), module.__name__.rpartition(".")[2]
        inside = [name for name in names if name in own]
        return self._hold(
            "", lambda: {n: own.get(n, _MISSING) for n in inside}, {n: f"{short}.{n}" for n in inside}
        )

    def _hold_items(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self._kept.append(_Items(path, value, lambda: (tuple(value), tuple(value.values()))))
            for key, item in value.items():
                if not isinstance(item, _ATOMS):
                    yield f"{path}[{key!r}]", item
            yield from ((f"{path}.keys()", key) for key in value if not isinstance(key, _ATOMS))
        else:
            self._kept.append(_Items(path, value, lambda: (tuple(value),)))
            for i, item in enumerate(value):
                if not isinstance(item, _ATOMS):
                    yield f"{path}[{i}]", item

    def _hold_attributes(self, path: str, read: Callable[[], Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
        return self._hold(path, read, _Dotted(path))

    def _hold(
        self, path: str, read: Callable[[], Mapping[str, Any]], names: Mapping[str, str]
    ) -> Iterator[tuple[str, Any]]:
        kept = _Named(path, read, names)
        self._kept.append(kept)
        yield from kept.children()


class _Values:
    """Something that can be read as a value that compares, and what it was."""

    def __init__(self, path: str, read: Callable[[], Any], *, renewable: bool = False) -> None:
        self.path, self._read, self.renewable = path, read, renewable
        self.take()

    def take(self) -> None:
        """Takes the value of this moment."""
        self._value = self._read()

    def change(self) -> str | None:
        """The name, if the value is another one."""
        return None if self._read() == self._value else self.path


class _TensorValues(_Values):
    """A tensor: its place, torch's count of changes, and its values."""

    def __init__(self, path: str, tensor: Tensor, *, long: bool) -> None:
        self._tensor = tensor
        self._whole = long or tensor.numel() <= _WHOLE
        super().__init__(path, lambda: None, renewable=True)

    def take(self) -> None:
        tensor = self._tensor
        self._is_at = _place(tensor)
        self._copy = None
        if self._whole:
            with suppress(RuntimeError, NotImplementedError, TypeError):
                self._copy = tensor.detach().clone()

    def change(self) -> str | None:
        if _place(self._tensor) != self._is_at:
            return self.path
        if self._copy is not None and not same_bits(self._tensor.detach(), self._copy):
            return self.path
        return None


class _Items(_Values):
    """The items of a container, each by identity, or by value if it was exchanged."""

    def __init__(self, path: str, holder: Any, read: Callable[[], Any]) -> None:
        self._holder = holder
        super().__init__(path, read)

    def change(self) -> str | None:
        if isinstance(self._holder, set | frozenset):
            return None if frozenset(self._holder) == frozenset(self._value[0]) else self.path
        now = self._read()
        for old, new in zip(self._value, now, strict=True):
            if len(old) != len(new):
                return self.path
            if all(map(is_, old, new)):
                continue
            for i, (a, b) in enumerate(zip(old, new, strict=True)):
                if not _same(a, b):
                    key = now[0][i] if isinstance(self._holder, dict) else i
                    return f"{self.path}[{key!r}]"
        return None


class _Named(_Values):
    """Values that have names: attributes, global variables, cells."""

    def __init__(self, path: str, read: Callable[[], Mapping[str, Any]], names: Mapping[str, str]) -> None:
        self._names = names
        super().__init__(path, read)

    def take(self) -> None:
        self._value = dict(self._read())

    def change(self) -> str | None:
        old, new = self._value, self._read()
        if len(old) == len(new):
            with suppress(KeyError):
                if all(map(is_, old.values(), map(new.__getitem__, old))):
                    return None
        for name in {**old, **new}:
            if not _same(old.get(name, _MISSING), new.get(name, _MISSING)):
                return self._name(name)
        return None

    def children(self) -> Iterator[tuple[str, Any]]:
        """The objects that are named."""
        return (
            (self._name(name), value) for name, value in self._value.items() if not isinstance(value, _ATOMS)
        )

    def _name(self, name: str) -> str:
        try:
            return self._names[name]
        except KeyError:
            return f"{self.path}.{name}"


class _Dotted(dict[str, str]):
    """Names of the attributes of what has this name."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same type, shape and values, where what is no number equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device or a.layout != b.layout:
        return False
    try:
        if torch.equal(a, b):
            return True
        if a.is_floating_point() or a.is_complex():
            return bool(((a == b) | ((a != a) & (b != b))).all())
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return False


def _same(old: Any, new: Any, depth: int = _DEPTH) -> bool:
    """Whether an object that took the place of another one has the same value."""
    if old is new:
        return True
    if type(old) is not type(new) or not depth:
        return False
    if isinstance(old, Tensor):
        return same_bits(old.detach(), new.detach())
    if isinstance(old, np.ndarray):
        return bool(old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes())
    if isinstance(old, _ATOMS):
        return bool(old == new or (old != old and new != new)) and repr(old) == repr(new)
    if isinstance(old, dict):
        return list(map(_key, old)) == list(map(_key, new)) and all(
            _same(a, b, depth - 1) for a, b in zip(old.values(), new.values(), strict=True)
        )
    if isinstance(old, list | tuple | deque):
        return len(old) == len(new) and all(_same(a, b, depth - 1) for a, b in zip(old, new, strict=True))
    if isinstance(old, set | frozenset):
        return bool(old == new)
    if isinstance(old, MethodType):
        return old.__func__ is new.__func__ and _same(old.__self__, new.__self__, depth - 1)
    if isinstance(old, FunctionType):
        parts = [(f.__code__, f.__defaults__, f.__kwdefaults__, f.__dict__) for f in (old, new)]
        cells = [[_cell(cell) for cell in f.__closure__ or ()] for f in (old, new)]
        return parts[0][0] is parts[1][0] and _same(
            (parts[0][1:], cells[0]), (parts[1][1:], cells[1]), depth - 1
        )
    if isinstance(old, nn.Module | type | ModuleType) or _is_opaque(old):
        return False
    states = [
        (getattr(v, "__dict__", None), [getattr(v, n, None) for k in type(v).__mro__ for n in slots_of(k)])
        for v in (old, new)
    ]
    return states != [(None, [])] * 2 and _same(states[0], states[1], depth - 1)


def _key(key: Any) -> Any:
    return (type(key), key)


def _place(tensor: Tensor) -> Any:
    """Where a tensor is, its shape, and torch's count of changes."""
    version = 0 if tensor.is_inference() else tensor._version
    try:
        return (
            tensor.data_ptr(),
            tensor.shape,
            tensor.stride(),
            tensor.grad is None or id(tensor.grad),
            version,
        )
    except (RuntimeError, NotImplementedError, TypeError):
        return version


def _cell(cell: CellType) -> dict[str, Any]:
    try:
        return {"": cell.cell_contents}
    except ValueError:  # not filled yet
        return {}


def _pickled(path: str, value: Any) -> _Values:
    """An object of a class that is not Python's, by what pickle makes of it."""
    try:
        return _Values(path, functools.partial(pickle.dumps, value))
    except Exception as error:
        raise UnsupportedError(
            f"{path!r} is of type {type(value).__name__}, which may remember one example for the next, and "
            "nobody can see whether it does. Keep it out of model, loss and collate_fn, or use a tensor, a "
            "list or a plain object instead."
        ) from error


def _referents(wrapper: Any) -> Iterator[Any]:
    """What a cache of functools holds."""
    for part in gc.get_referents(wrapper):
        if isinstance(part, dict):
            for link in part.values():
                yield from (gc.get_referents(link) if not isinstance(link, _ATOMS) else ())


def _is_opaque(value: Any) -> bool:
    """Whether an object is of a class that was not written in Python, so that attributes do not show it."""
    if isinstance(value, GeneratorType):
        return not _is_library(str(value.gi_frame.f_globals.get("__name__")) if value.gi_frame else "adamas")
    return _is_native(type(value)) and not isinstance(value, _SHOWN)


def _is_native(kind: type) -> bool:
    """Whether a class has its memory from a class of C's."""
    if kind.__base__ is None:
        return False
    if not kind.__flags__ & _HEAP:
        return True
    if kind.__base__ is object:
        return not {"__dict__", "__slots__"} & vars(kind).keys()
    return _is_native(kind.__base__)


def _is_quiet(value: Any) -> bool:
    """Whether an object of a library holds nothing of a forward."""
    top = str(type(value).__module__).partition(".")[0]
    if isinstance(value, _SHOWN):
        return isinstance(value, torch.Size)
    return isinstance(value, _LOCKS) or top == "adamas" or (top in _COMPILED and _is_native(type(value)))


def _is_library(module: str | None) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES and module != "__main__"


def made_by_hooks(module: nn.Module) -> set[str]:
    """The weights that torch's hooks weight_norm, spectral_norm and prune make anew before each forward."""
    hooks = module.__dict__["_forward_pre_hooks"].values()
    return {
        str(getattr(hook, "name", None) or getattr(hook, "_tensor_name", None))
        for hook in hooks
        if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod)
    }


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The global variables, attributes and modules that code names, with the functions inside it."""
    names, attributes, modules = set(), set(), set()
    for step in dis.get_instructions(code):
        if step.opname in _GLOBALS:
            names.add(str(step.argval))
        elif step.opname in _ATTRIBUTES:
            attributes.add(str(step.argval))
        elif step.opname == "IMPORT_NAME":
            modules.add(str(step.argval))
    for part in code.co_consts:
        if isinstance(part, CodeType):
            for mine, theirs in zip((names, attributes, modules), _names(part), strict=True):
                mine |= theirs
    return frozenset(names), frozenset(attributes), frozenset(modules)
