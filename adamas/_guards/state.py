"""The state of a model beside its gradients: does a forward leave it as it was?

State that a forward changes carries examples into the gradients of others, where no clipping sees them, and
out of the run without noise.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adamas._guards.memory import Memory, made_by_hooks
from adamas._streams import generator_state, global_generators, seed_python_from_torch, set_generator_state
from adamas.errors import UnsupportedError

# Up to this many numbers a tensor is copied; of a longer one so many are looked at, others at each turn.
_WHOLE = 16384
_SAMPLE = 256
# A longer frozen parameter is never copied: it may be most of the memory.
_LONGEST_COPY = 1 << 20
# Items of a list or mapping that are looked at, and how many of them may be inside one another.
_ITEMS, _DEPTH = 1000, 4

_TABLES = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}
_MACHINERY = frozenset(nn.Module().__dict__.keys() - {"training"})
_CONTAINERS = (list, tuple, deque, dict)
_NO_OBJECTS = (nn.Module, Tensor, type, FunctionType, MethodType, ModuleType)
_HARMLESS = {bool, int, str, type(None)}
_NUMBERS = (float, complex, np.floating)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MISSING = object()
_NO_PLAIN_MEMORY = (RuntimeError, NotImplementedError, TypeError)  # what some kinds of tensors raise
_REMEDIES = {
    "parameter": "Set it before the run, without private data, or remove the update.",
    "buffer": "Freeze the module that owns it with .eval(), or remove the update.",
    "module": "Make all modules before the run.",
    "attribute": "Return it from the forward instead of keeping it on a module, or remove the update.",
    "extra state": "Freeze the module that owns it with .eval(), or remove the update.",
}


class Watch:
    """Watches over the state of a model at each release; what is known of its modules is kept in between."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._of: tuple[nn.Module, object] | None = None

    @contextmanager
    def over(
        self, model: nn.Module, loss: object, turn: int, *, reads_values: bool = False
    ) -> Iterator["Snapshot"]:
        """Gives the state as it is now: call its `check` before anything is released.

        If anything raises, what can be restored is restored.

        Args:
            model: The model.
            loss: The loss, whose own modules are watched as well.
            turn: The number of the release, which says which values of long tensors are compared.
            reads_values: Whether the forward may make Python values of the data, so that everything that
                Python can remember is watched; see `Snapshot.between`.
        """
        known = self._of is not None and self._of[0] is model and self._of[1] is loss
        if self._snapshot is None or not known or not self._snapshot.renew(turn):
            self._snapshot = Snapshot(model, loss, turn=turn, reads_values=reads_values)
            self._of = (model, loss)
        snapshot = self._snapshot
        generators = global_generators()[:2] if reads_values else []
        states = [generator_state(generator) for generator in generators]
        try:
            yield snapshot
        except BaseException:
            self._snapshot = None
            snapshot.restore()
            raise
        finally:
            for generator, state in zip(generators, states, strict=True):
                set_generator_state(generator, state)


@contextmanager
def unchanged(model: nn.Module, loss: object = None) -> Iterator[None]:
    """Leaves the model bit for bit as it was before, flags and counters included.

    Frozen parameters of more than a million numbers are compared, and not restored.

    Raises:
        UnsupportedError: If something changed that `Snapshot.check` does not accept.
    """
    snapshot = Snapshot(model, loss, whole=True)
    try:
        yield
        snapshot.check()
    finally:
        snapshot.restore()


class Snapshot:
    """The state of a model at one moment, to compare with and to go back to.

    Seen are parameters, buffers and submodules, and what modules have as plain attributes: tensors, arrays,
    numbers with a fraction, and lists, tuples, mappings and objects of these, one level deep; the extra state
    of modules that have some. A tensor is compared by identity, by its place in memory, by torch's count of
    changes in place, and by its values: all of them up to 16,384, and 256 of a longer one, other ones at each
    `turn`.

    Not seen are a write through `.data` into few values of a longer tensor, until a turn meets one of them,
    and state elsewhere: global variables, attributes of classes, objects deeper inside. Integers, flags and
    strings may change, as in a forward that counts its calls: where values of the data cannot be read, they
    hold none. With `reads_values` all that is seen as well, and may not change. A weight that torch's hooks
    `weight_norm`, `spectral_norm` or `prune` make anew before each forward may change in any case.

    Args:
        model: The model.
        loss: The loss, whose own modules count as well: itself, the object that it is a method of, and what
            it was made with.
        whole: Copy all tensors, so that all can be restored.
        turn: Which values of long tensors are compared.
        reads_values: Also watch what else Python can remember, down to integers: see `adamas._guards.memory`.
            Tensors are then compared in all of their values.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: object = None,
        *,
        whole: bool = False,
        turn: int = 0,
        reads_values: bool = False,
    ) -> None:
        self._whole = whole
        self._memory = Memory({"": model, "loss": loss}, long=True) if reads_values else None
        self._holders: list[_Holder] = []
        self._extra: list[tuple[str, nn.Module, Any]] = []
        self._known: set[int] = set()  # containers and objects that several modules refer to
        found: dict[Tensor, tuple[str, str]] = {}
        for path, module in _modules(model, loss):
            self._add(path, module, found)
        for name, value in (("loss", loss), ("loss.__self__", getattr(loss, "__self__", None))):
            self._add_attribute(name, value, found)
        self._tensors = [_Kept(t, kind, path, whole) for t, (kind, path) in found.items()]
        for kept in self._tensors:
            kept.renew(turn)

    def renew(self, turn: int) -> bool:
        """Takes the values of this moment instead; False if objects were exchanged, which needs a new one."""
        if not all(holder.is_same() for holder in self._holders):
            return False
        if self._memory is not None and not self._memory.renew():
            return False
        self._extra = [(path, module, _copied(module.get_extra_state())) for path, module, _ in self._extra]
        return all([kept.renew(turn) for kept in self._tensors])

    def check(self) -> None:
        """Raises if something changed that may carry data from one example to another."""
        for kind, path in self._changes():
            raise UnsupportedError(
                f"The forward changes the {kind} {path!r}, so an example's gradient depends on the examples "
                f"before it. {_REMEDIES[kind]}"
            )
        changed = None if self._memory is None else self._memory.change()
        if changed is not None:
            raise UnsupportedError(
                f"The forward changes {changed!r}. With engine='loop' it may hold a value of the data, so "
                "that an example's gradient depends on the examples before it. Remove the update, also if it "
                "only counts calls: there is one for each example, and their number is private."
            )

    def between(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The same loss, for an engine that calls it for one example or chunk of examples after the other.

        What counts calls is put back before each call. With `reads_values` all state is compared instead,
        since a later example may put back what an earlier one has changed, and Python's and NumPy's
        generators are seeded anew, since they remember as well.
        """
        seed: list[int] = []
        if self._memory is None:
            return self._counting_apart(loss)

        def watched(model: nn.Module, batch: Any) -> Tensor:
            self.check()
            if torch.initial_seed() != (seed or [torch.initial_seed()])[0]:
                raise UnsupportedError(
                    "The forward seeds torch's global generator, by which one example can hand a value to "
                    "the next. Seed it once, before the run."
                )
            seed[:] = [torch.initial_seed()]
            seed_python_from_torch()
            return loss(model, batch)

        return watched

    def put_back(self) -> None:
        """Puts counts and flags back to where they were, so that the number of calls reaches no later one."""
        for holder in self._holders:
            if holder.kind == "attribute" and not holder.is_same():  # vmap exchanges parameters itself
                holder.restore(everything=True)

    def _counting_apart(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def apart(model: nn.Module, batch: Any) -> Tensor:
            self.put_back()
            return loss(model, batch)

        return apart

    def restore(self) -> None:
        """Goes back to what was kept; without `whole`, flags and counters stay as they are."""
        for holder in self._holders:
            holder.restore(everything=self._whole)
        for kept in self._tensors:
            kept.restore()

    def _changes(self) -> Iterator[tuple[str, str]]:
        for holder in self._holders:
            if not holder.is_same():
                for key, old, new in holder.changes():
                    if _differs(old, new):
                        yield holder.kind, holder.name_of(key)
        for kept in self._tensors:
            if kept.is_changed():
                yield kept.kind, kept.path
        for path, module, before in self._extra:
            if _differs(before, module.get_extra_state()):
                yield "extra state", path

    def _add(self, path: str, module: nn.Module, found: dict[Tensor, tuple[str, str]]) -> None:
        own = module.__dict__
        for table, kind in _TABLES.items():
            self._holders.append(_Holder(kind, path, own[table]))
            if kind != "module":
                for name, value in own[table].items():
                    if value is not None:
                        found.setdefault(value, (kind, path + name))
        hidden = _MACHINERY | made_by_hooks(module)
        self._holders.append(_Holder("attribute", path, own, hidden))
        for name, value in own.items():
            if type(value) not in _HARMLESS and name not in hidden:
                self._add_attribute(path + name, value, found)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            name = path.removesuffix(".") or type(module).__name__
            self._extra.append((name, module, _copied(module.get_extra_state())))

    def _add_attribute(self, path: str, value: Any, found: dict[Tensor, tuple[str, str]]) -> None:
        if (tensor := _as_tensor(value)) is not None:
            found.setdefault(tensor, ("attribute", path))
            return
        brackets = isinstance(value, _CONTAINERS)
        if (brackets or _is_object(value)) and id(value) not in self._known:
            self._known.add(id(value))
            inside = value if brackets else vars(value)
            holder = _Holder("attribute", path if brackets else f"{path}.", inside, brackets=brackets)
            self._holders.append(holder)
            for key, item in _items(inside):
                if (tensor := _as_tensor(item)) is not None:
                    found.setdefault(tensor, ("attribute", holder.name_of(key)))


class _Holder:
    """A mapping or list, and the objects that it held."""

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
        self._values = {key: value for key, value in _items(holder) if key not in hidden} if holder else {}

    def name_of(self, key: Any) -> str:
        """The expression that reaches an item."""
        return f"{self._path}[{key!r}]" if self._brackets else f"{self._path}{key}"

    def is_same(self) -> bool:
        """Whether it holds the same objects."""
        holder, values = self._holder, self._values
        if len(holder) != self._length or not self._length:
            return len(holder) == self._length
        try:
            return all(map(is_, values.values(), map(holder.__getitem__, values)))
        except KeyError:
            return False

    def changes(self) -> Iterator[tuple[Any, Any, Any]]:
        """Key, old and new object where they are not the same."""
        values, items = self._values, dict(_items(self._holder))
        if len(self._holder) > max(self._length, _ITEMS):  # what was added to a long one
            items[len(self._holder) - 1] = next(reversed(_values(self._holder)))
        for key in [*values, *(key for key in items if key not in values)]:
            old, new = values.get(key, _MISSING), items.get(key, _MISSING)
            if old is not new and key not in self._hidden:
                yield key, old, new

    def restore(self, *, everything: bool) -> None:
        """Puts back the objects that were exchanged: all, or those that may carry data."""
        changed = [(key, old) for key, old, new in self.changes() if everything or _differs(old, new)]
        if isinstance(self._holder, dict):
            for key, old in changed:
                if old is _MISSING:
                    self._holder.pop(key, None)
                else:
                    self._holder[key] = old
        elif changed and self._length <= _ITEMS:
            self._holder.clear()
            self._holder.extend(self._values.values())


class _Kept:
    """A tensor, and enough of its values to see a change."""

    __slots__ = (
        *("_array", "_bits", "_copy", "_data", "_part", "_place", "_step", "_tensor", "_version"),
        *("kind", "path"),
    )

    def __init__(self, tensor: Tensor, kind: str, path: str, whole: bool) -> None:
        self.kind, self.path, self._tensor = kind, path, tensor
        self._data: Tensor | None = None
        self._bits: Tensor | None = None
        self._array: np.ndarray | None = None  # the same memory, which NumPy reads in a fraction of the time
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
        """Takes the values of this moment; False if the tensor has other memory than before."""
        if self._is_elsewhere():
            return False
        self._version = _version(self._tensor)
        values = self._bits if self._array is None else self._array
        if values is not None:
            self._part = values[7919 * turn % self._step :: self._step] if self._step else values
            self._copy = self._part.clone() if isinstance(self._part, Tensor) else self._part.tobytes()
        return True

    def is_changed(self) -> bool:
        """Whether it has other values, or may have where only some are known."""
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
        """Puts back the memory, and the values if all are known."""
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


def _modules(model: nn.Module, loss: object) -> Iterator[tuple[str, nn.Module]]:
    """The modules of model and loss, each once, with the beginning of their attributes' names."""
    seen: set[nn.Module] = set()
    for name, module in model.named_modules(seen):
        yield (f"{name}." if name else ""), module
    parts = {"": loss, "__self__": getattr(loss, "__self__", None)}
    names = getattr(getattr(loss, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(loss, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not filled yet
            parts[name] = cell.cell_contents
    if isinstance(loss, partial):
        parts |= {"func": loss.func} | {str(i): value for i, value in enumerate(loss.args)} | loss.keywords
    for part, value in parts.items():
        if isinstance(value, nn.Module):
            for name, module in value.named_modules(seen):
                yield "".join(f"{word}." for word in ("loss", part, name) if word), module


def _bits(data: Tensor) -> Tensor | None:
    """A flat view of a tensor's memory as integers, which compare as values that are no numbers do not."""
    if data.layout is not torch.strided or data.is_quantized or data.is_meta or data.is_conj():
        return None
    if not data.is_contiguous():  # channels last, transposed: contiguous in another order of the axes
        data = data.permute(sorted(range(data.dim()), key=data.stride, reverse=True))
        if not data.is_contiguous():
            return None
    flat = torch.view_as_real(data).view(-1) if data.is_complex() else data.view(-1)
    return flat.view(_SAME_SIZE[flat.element_size()])


def _version(tensor: Tensor) -> int:
    """Torch's count of the changes in place; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _items(holder: Any) -> Iterable[tuple[Any, Any]]:
    """The first items of a mapping or list with their keys."""
    items = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return islice(items, _ITEMS)


def _values(holder: Any) -> Any:
    return holder.values() if isinstance(holder, dict) else holder


def _as_tensor(value: Any) -> Tensor | None:
    """A tensor, or an array's memory as one; None for anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.flags.writeable:
        with suppress(TypeError, ValueError):
            return torch.from_numpy(value)
    return None


def _copied(value: Any, depth: int = _DEPTH) -> Any:
    """The value with copies of its tensors and containers."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict) and depth:
        return {key: _copied(item, depth - 1) for key, item in value.items()}
    if isinstance(value, _CONTAINERS) and depth:
        return [_copied(item, depth - 1) for item in value]
    return value


def _differs(old: Any, new: Any, depth: int = _DEPTH) -> bool:
    """Whether two values differ in what may carry data; integers, flags and unknown objects do not count."""
    if old is new:
        return False
    kinds = (old, new)
    if any(isinstance(value, Tensor | np.ndarray) for value in kinds):
        return not _equal(*map(_as_tensor, kinds))
    if any(isinstance(value, _NUMBERS) for value in kinds):
        return bool(old != new and (old == old or new == new))
    if any(isinstance(value, _CONTAINERS) for value in kinds) and depth:
        a, b = (dict(_items(value)) if isinstance(value, _CONTAINERS) else {} for value in kinds)
        return any(_differs(a.get(k, _MISSING), b.get(k, _MISSING), depth - 1) for k in {**a, **b})
    if type(old) is type(new) and _is_object(old) and depth:
        return _differs(vars(old), vars(new), depth - 1)
    return any(isinstance(value, nn.Module) for value in kinds)


def _is_object(value: Any) -> bool:
    """Whether it is an object of a class, with attributes, and no module, function or class."""
    return hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    with suppress(*_NO_PLAIN_MEMORY):
        left, right = (_bits(x.detach().contiguous()) for x in (a, b))
        return left is not None and right is not None and torch.equal(left, right)
    return False
