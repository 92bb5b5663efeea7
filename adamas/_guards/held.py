"""Keeps containers and tensors as they are, to tell whether they change and to put them back."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# A tensor of up to _WHOLE numbers is copied. Of a longer one _SAMPLE are compared, others at each turn.
_WHOLE = 16384
_SAMPLE = 256
# A longer frozen parameter is never copied: it may be most of the memory.
_LONGEST_COPY = 1 << 20
# Items of a list or mapping that are compared, and how deep they may be nested.
_ITEMS, _DEPTH = 1000, 4

CONTAINERS = (list, tuple, deque, dict)
_NO_OBJECTS = (nn.Module, Tensor, type, FunctionType, MethodType, ModuleType)
_NUMBERS = (float, complex, np.floating)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MISSING = object()
_NO_PLAIN_MEMORY = (RuntimeError, NotImplementedError, TypeError)  # what some kinds of tensors raise


class Holder:
    """A mapping or list, and the objects in it."""

    __slots__ = ("_brackets", "_hidden", "_holder", "_length", "_path", "_values", "kind")

    def __init__(
        self,
        kind: str,
        path: str,
        holder: Any,
        hidden: Collection[Any] = frozenset(),
        *,
        brackets: bool = False,
    ) -> None:
        self.kind, self._path, self._holder = kind, path, holder
        self._hidden, self._brackets = hidden, brackets
        self._length = len(holder)
        self._values = {key: value for key, value in items_of(holder) if key not in hidden} if holder else {}

    def name_of(self, key: Any) -> str:
        """Returns the expression that reaches an item."""
        return f"{self._path}[{key!r}]" if self._brackets else f"{self._path}{key}"

    def is_same(self) -> bool:
        """Tells whether it holds the same objects."""
        holder, values = self._holder, self._values
        if len(holder) != self._length or not self._length:
            return len(holder) == self._length
        try:
            return all(map(is_, values.values(), map(holder.__getitem__, values)))
        except KeyError:
            return False

    def changes(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yields key, old and new object where they are not the same."""
        values, items = self._values, dict(items_of(self._holder))
        if len(self._holder) > max(self._length, _ITEMS):  # what was added to a long one
            items[len(self._holder) - 1] = next(reversed(_values(self._holder)))
        for key in [*values, *(key for key in items if key not in values)]:
            old, new = values.get(key, _MISSING), items.get(key, _MISSING)
            if old is not new and key not in self._hidden:
                yield key, old, new

    def restore(self, *, everything: bool) -> None:
        """Puts back objects that were exchanged: all of them, or those that may carry data."""
        changed = [(key, old) for key, old, new in self.changes() if everything or differs(old, new)]
        if isinstance(self._holder, dict):
            for key, old in changed:
                if old is _MISSING:
                    self._holder.pop(key, None)
                else:
                    self._holder[key] = old
        elif changed and self._length <= _ITEMS:
            self._holder.clear()
            self._holder.extend(self._values.values())


class KeptTensor:
    """A tensor, and enough of its values to notice a change."""

    __slots__ = (
        *("_array", "_bits", "_copy", "_data", "_part", "_place", "_step", "_tensor", "_version"),
        *("kind", "path"),
    )

    def __init__(self, tensor: Tensor, kind: str, path: str, whole: bool) -> None:
        self.kind, self.path, self._tensor = kind, path, tensor
        self._data: Tensor | None = None
        self._bits: Tensor | None = None
        self._array: np.ndarray | None = (
            None  # the same memory, for NumPy, which reads it several times as fast
        )
        self._place = self._step = 0
        with suppress(*_NO_PLAIN_MEMORY):
            self._place = tensor.data_ptr()
            self._data = tensor.data
            self._bits = _bits(self._data)
            frozen = kind == "parameter" and not tensor.requires_grad
            most = (_LONGEST_COPY if frozen else tensor.numel()) if whole else _WHOLE
            self._step = 0 if self._bits is None or tensor.numel() <= most else len(self._bits) // _SAMPLE
            if self._bits is not None and self._bits.device.type == "cpu":
                self._array = self._bits.numpy()
        self._part: Any = None
        self._copy: Any = None
        self._version = _version(tensor)

    def renew(self, turn: int) -> bool:
        """Keeps the current values; False if the tensor has other memory than before."""
        if self._is_elsewhere():
            return False
        self._version = _version(self._tensor)
        values = self._bits if self._array is None else self._array
        if values is not None:
            self._part = values[7919 * turn % self._step :: self._step] if self._step else values
            self._copy = self._part.clone() if isinstance(self._part, Tensor) else self._part.tobytes()
        return True

    def is_changed(self) -> bool:
        """Tells whether its values have changed, or may have where only some are kept."""
        if self._is_elsewhere():
            return True
        if self._part is None or self._copy is None:
            return _version(self._tensor) != self._version
        if self._step and _version(self._tensor) != self._version:
            return True
        if isinstance(self._part, Tensor):
            return not torch.equal(self._part, self._copy)
        return bool(self._part.tobytes() != self._copy)

    def restore(self) -> None:
        """Puts back the memory, and the values if all were kept."""
        with suppress(*_NO_PLAIN_MEMORY):  # the memory of vmap's tensors cannot be exchanged
            if self._data is not None and self._tensor.data_ptr() != self._place:
                self._tensor.data = self._data
        if not self._step and self._bits is not None and self._copy is not None:
            if self._array is None:
                self._bits.copy_(self._copy)
            else:
                self._array[...] = np.frombuffer(self._copy, self._array.dtype)

    def _is_elsewhere(self) -> bool:
        try:
            return self._data is not None and self._tensor.data_ptr() != self._place
        except _NO_PLAIN_MEMORY:
            return True


def _bits(data: Tensor) -> Tensor | None:
    """Returns a flat view of a tensor's memory as integers, so that NaN compares, too."""
    if data.layout is not torch.strided or data.is_quantized or data.is_meta or data.is_conj():
        return None
    if not data.is_contiguous():  # channels last, transposed: contiguous in another order of the axes
        data = data.permute(sorted(range(data.dim()), key=data.stride, reverse=True))
        if not data.is_contiguous():
            return None
    flat = torch.view_as_real(data).view(-1) if data.is_complex() else data.view(-1)
    return flat.view(_SAME_SIZE[flat.element_size()])


def _version(tensor: Tensor) -> int:
    """Returns torch's count of in-place changes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def items_of(holder: Any) -> Iterable[tuple[Any, Any]]:
    """Returns the first items of a mapping or list with their keys."""
    items = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return islice(items, _ITEMS)


def _values(holder: Any) -> Any:
    return holder.values() if isinstance(holder, dict) else holder


def as_tensor(value: Any) -> Tensor | None:
    """Returns a tensor, or an array's memory as one; None for anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.flags.writeable:
        with suppress(TypeError, ValueError):
            return torch.from_numpy(value)
    return None


def copied(value: Any, depth: int = _DEPTH) -> Any:
    """Copies a value with its tensors and containers."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict) and depth:
        return {key: copied(item, depth - 1) for key, item in value.items()}
    if isinstance(value, CONTAINERS) and depth:
        return [copied(item, depth - 1) for item in value]
    return value


def differs(old: Any, new: Any, depth: int = _DEPTH) -> bool:
    """Tells whether two values differ in data. Integers, flags and unknown objects do not count."""
    if old is new:
        return False
    kinds = (old, new)
    if any(isinstance(value, Tensor | np.ndarray) for value in kinds):
        return not _equal(*map(as_tensor, kinds))
    if any(isinstance(value, _NUMBERS) for value in kinds):
        return bool(old != new and (old == old or new == new))
    if any(isinstance(value, CONTAINERS) for value in kinds) and depth:
        a, b = (dict(items_of(value)) if isinstance(value, CONTAINERS) else {} for value in kinds)
        return any(differs(a.get(k, _MISSING), b.get(k, _MISSING), depth - 1) for k in {**a, **b})
    if type(old) is type(new) and is_object(old) and depth:
        return differs(vars(old), vars(new), depth - 1)
    return any(isinstance(value, nn.Module) for value in kinds)


def is_object(value: Any) -> bool:
    """Tells whether a value is an object with attributes, and no module, function or class."""
    return hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Tells whether two tensors have the same type, shape and bits."""
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    with suppress(*_NO_PLAIN_MEMORY):
        left, right = (_bits(x.detach().contiguous()) for x in (a, b))
        return left is not None and right is not None and torch.equal(left, right)
    return False
