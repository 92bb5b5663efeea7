"""Checks that a forward leaves the state of a model as it was.

State that a forward changes carries examples into the gradients of others, where no clipping bounds them, and
out of the run without noise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adamas._guards.held import (
    CONTAINERS,
    Holder,
    KeptTensor,
    as_tensor,
    copied,
    differs,
    is_object,
    items_of,
)
from adamas._guards.kinds import made_by_hooks
from adamas._guards.memory import Memory
from adamas._streams import python_randomness_restored, seed_python_from_torch
from adamas.errors import UnsupportedError

_TABLES = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}
_MACHINERY = frozenset(nn.Module().__dict__.keys() - {"training"})
_HARMLESS = {bool, int, str, type(None)}
_REMEDIES = {
    "parameter": "Set it before the run, without private data, or remove the update.",
    "buffer": "Freeze the module that owns it with .eval(), or remove the update.",
    "module": "Make all modules before the run.",
    "attribute": "Return it from the forward instead of keeping it on a module, or remove the update.",
    "extra state": "Freeze the module that owns it with .eval(), or remove the update.",
}


class Watch:
    """Watches the state of a model at each release. Its modules are read again only if they change."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._of: tuple[nn.Module, object] | None = None

    @contextmanager
    def over(
        self, model: nn.Module, loss: object, turn: int, *, reads_values: bool = False
    ) -> Iterator["Snapshot"]:
        """Yields the current state: call its `check` before anything is released.

        If the block raises, the state is restored as far as possible.

        Args:
            model: The model.
            loss: The loss, whose own modules are watched as well.
            turn: The number of the release. It chooses the values of long tensors that are compared.
            reads_values: Whether the forward may turn data into Python values. Then everything that Python
                can remember is watched; see `Snapshot.between`.
        """
        known = self._of is not None and self._of[0] is model and self._of[1] is loss
        if self._snapshot is None or not known or not self._snapshot.renew(turn):
            self._snapshot = Snapshot(model, loss, turn=turn, reads_values=reads_values)
            self._of = (model, loss)
        snapshot = self._snapshot
        try:
            with python_randomness_restored() if reads_values else nullcontext():
                yield snapshot
        except BaseException:
            self._snapshot = None
            snapshot.restore()
            raise


@contextmanager
def unchanged(model: nn.Module, loss: object = None) -> Iterator[None]:
    """Leaves the model bit for bit as it was, flags and counters included.

    Frozen parameters of more than a million numbers are compared, but not restored.

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

    It covers parameters, buffers and submodules, plain attributes of modules (tensors, arrays, floating-point
    numbers, and lists, tuples, mappings and objects of these, one level deep), and the extra state of modules
    that have some. A tensor is compared by identity, by its place in memory, by torch's count of in-place
    changes, and by its values: all of them up to 16,384, and 256 of a longer one, others at each `turn`.

    It misses a write through `.data` into few values of a longer tensor, until a turn meets one of them, and
    state elsewhere: global variables, attributes of classes, objects that are nested deeper. Integers, flags
    and strings may change, as in a forward that counts its calls: where the forward cannot read values of the
    data, they hold none. With `reads_values` all of this is covered, and must not change. A weight that
    torch's hooks `weight_norm`, `spectral_norm` or `prune` recompute before each forward may always change.

    Args:
        model: The model.
        loss: The loss. Its own modules count, too: itself, the object that it is a method of, and its bound
            arguments.
        whole: Copy all tensors, so that all can be restored.
        turn: Chooses the values of long tensors that are compared.
        reads_values: Also watch everything else that Python can remember, down to integers: see
            `adamas._guards.memory`. All values of tensors are then compared.
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
        self._holders: list[Holder] = []
        self._extra: list[tuple[str, nn.Module, Any]] = []
        self._known: set[int] = set()  # containers and objects that several modules refer to
        found: dict[Tensor, tuple[str, str]] = {}
        for path, module in _modules(model, loss):
            self._add(path, module, found)
        for name, value in (("loss", loss), ("loss.__self__", getattr(loss, "__self__", None))):
            self._add_attribute(name, value, found)
        self._tensors = [KeptTensor(t, kind, path, whole) for t, (kind, path) in found.items()]
        for kept in self._tensors:
            kept.renew(turn)

    def renew(self, turn: int) -> bool:
        """Keeps the current values instead; False if objects were exchanged, which needs a new snapshot."""
        if not all(holder.is_same() for holder in self._holders):
            return False
        if self._memory is not None and not self._memory.renew():
            return False
        self._extra = [(path, module, copied(module.get_extra_state())) for path, module, _ in self._extra]
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
                "that an example's gradient depends on the examples before it. Remove the update, even if it "
                "only counts calls: there is one call per example, and their number is private."
            )

    def between(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Wraps the loss for an engine that calls it for one example or chunk of examples after another.

        Counts of calls are put back before each call. With `reads_values` all state is compared instead,
        since a later example may put back what an earlier one has changed. Python's and NumPy's generators
        are then seeded again, since they remember, too.
        """
        seed: list[int] = []
        if self._memory is None:
            return self._counting_apart(loss)

        def watched(model: nn.Module, batch: Any) -> Tensor:
            self.check()
            if torch.initial_seed() != (seed or [torch.initial_seed()])[0]:
                raise UnsupportedError(
                    "The forward seeds torch's global generator, which can carry a value from one example to "
                    "the next. Seed it once, before the run."
                )
            seed[:] = [torch.initial_seed()]
            seed_python_from_torch()
            return loss(model, batch)

        return watched

    def put_back(self) -> None:
        """Puts counts and flags back, so that the number of calls reaches no later call."""
        for holder in self._holders:
            if holder.kind == "attribute" and not holder.is_same():  # vmap exchanges parameters itself
                holder.restore(everything=True)

    def _counting_apart(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def apart(model: nn.Module, batch: Any) -> Tensor:
            self.put_back()
            return loss(model, batch)

        return apart

    def restore(self) -> None:
        """Restores what was kept; without `whole`, flags and counters stay as they are."""
        for holder in self._holders:
            holder.restore(everything=self._whole)
        for kept in self._tensors:
            kept.restore()

    def _changes(self) -> Iterator[tuple[str, str]]:
        for holder in self._holders:
            if not holder.is_same():
                for key, old, new in holder.changes():
                    if differs(old, new):
                        yield holder.kind, holder.name_of(key)
        for kept in self._tensors:
            if kept.is_changed():
                yield kept.kind, kept.path
        for path, module, before in self._extra:
            if differs(before, module.get_extra_state()):
                yield "extra state", path

    def _add(self, path: str, module: nn.Module, found: dict[Tensor, tuple[str, str]]) -> None:
        own = module.__dict__
        for table, kind in _TABLES.items():
            self._holders.append(Holder(kind, path, own[table]))
            if kind != "module":
                for name, value in own[table].items():
                    if value is not None:
                        found.setdefault(value, (kind, path + name))
        hidden = _MACHINERY | made_by_hooks(module)
        self._holders.append(Holder("attribute", path, own, hidden))
        for name, value in own.items():
            if type(value) not in _HARMLESS and name not in hidden:
                self._add_attribute(path + name, value, found)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            name = path.removesuffix(".") or type(module).__name__
            self._extra.append((name, module, copied(module.get_extra_state())))

    def _add_attribute(self, path: str, value: Any, found: dict[Tensor, tuple[str, str]]) -> None:
        if (tensor := as_tensor(value)) is not None:
            found.setdefault(tensor, ("attribute", path))
            return
        brackets = isinstance(value, CONTAINERS)
        if (brackets or is_object(value)) and id(value) not in self._known:
            self._known.add(id(value))
            inside = value if brackets else vars(value)
            holder = Holder("attribute", path if brackets else f"{path}.", inside, brackets=brackets)
            self._holders.append(holder)
            for key, item in items_of(inside):
                if (tensor := as_tensor(item)) is not None:
                    found.setdefault(tensor, ("attribute", holder.name_of(key)))


def _modules(model: nn.Module, loss: object) -> Iterator[tuple[str, nn.Module]]:
    """Yields the modules of model and loss, each once, with the prefix of their attributes' names."""
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
