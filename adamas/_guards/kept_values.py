"""Values of Python objects, kept to compare with later."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adamas._guards.kinds import ATOMS, is_opaque
from adamas._nests import slots_of
from adamas.errors import UnsupportedError

WHOLE = 16384  # numbers of a tensor that are compared where long ones need not be
MISSING = object()
_DEPTH = 20  # how deep exchanged values are compared


class Values:
    """A value that can be read again and compared, and what it was."""

    def __init__(self, path: str, read: Callable[[], Any], *, renewable: bool = False) -> None:
        self.path, self._read, self.renewable = path, read, renewable
        self.take()

    def take(self) -> None:
        """Keeps the current value."""
        self._value = self._read()

    def change(self) -> str | None:
        """Returns the name if the value has changed."""
        return None if self._read() == self._value else self.path


class TensorValues(Values):
    """A tensor: its memory, torch's count of changes, and its values."""

    def __init__(self, path: str, tensor: Tensor, *, long: bool) -> None:
        self._tensor = tensor
        self._whole = long or tensor.numel() <= WHOLE
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


class Items(Values):
    """The items of a container, compared by identity, or by value if they were exchanged."""

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


class Named(Values):
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
            if not _same(old.get(name, MISSING), new.get(name, MISSING)):
                return self._name(name)
        return None

    def children(self) -> Iterator[tuple[str, Any]]:
        """Yields the objects that are named."""
        return (
            (self._name(name), value) for name, value in self._value.items() if not isinstance(value, ATOMS)
        )

    def _name(self, name: str) -> str:
        try:
            return self._names[name]
        except KeyError:
            return f"{self.path}.{name}"


class Dotted(dict[str, str]):
    """Full names of the attributes of an object, by attribute."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tells whether two tensors have the same type, shape and values. NaN equals itself."""
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
    """Tells whether an object that replaced another one has the same value."""
    if old is new:
        return True
    if type(old) is not type(new) or not depth:
        return False
    if isinstance(old, Tensor):
        return same_bits(old.detach(), new.detach())
    if isinstance(old, np.ndarray):
        return bool(old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes())
    if isinstance(old, ATOMS):
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
        cells = [[contents(cell) for cell in f.__closure__ or ()] for f in (old, new)]
        return parts[0][0] is parts[1][0] and _same(
            (parts[0][1:], cells[0]), (parts[1][1:], cells[1]), depth - 1
        )
    if isinstance(old, nn.Module | type | ModuleType) or is_opaque(old):
        return False
    states = [
        (getattr(v, "__dict__", None), [getattr(v, n, None) for k in type(v).__mro__ for n in slots_of(k)])
        for v in (old, new)
    ]
    return states != [(None, [])] * 2 and _same(states[0], states[1], depth - 1)


def _key(key: Any) -> Any:
    return (type(key), key)


def _place(tensor: Tensor) -> Any:
    """Returns a tensor's place in memory, its shape, and torch's count of changes."""
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


def contents(cell: CellType) -> dict[str, Any]:
    try:
        return {"": cell.cell_contents}
    except ValueError:  # not filled yet
        return {}


def held(path: str, read: Callable[[], Any], value: Any) -> Values:
    """Keeps an object that hides its state, by what `read` returns of it, such as its pickled bytes."""
    try:
        return Values(path, read)
    except Exception as error:
        raise UnsupportedError(
            f"{path!r} is of type {type(value).__name__}, which may remember one example for the next, and "
            "its state cannot be compared. Keep it out of model, loss and collate_fn, or use a tensor, a "
            "list or a plain object instead."
        ) from error
