"""Finds computation on data that the recorder does not see.

The recorder sees functions of torch that are called from Python, in its own thread. TorchScript, compiled
modules, extensions and other threads compute without calling any; what they return would look like a
constant. So a tensor without a mark is a constant only if it is known to be one: it was there before the
forward, or a mode below the dispatcher saw how it was made. That mode runs in the first forward of a model,
and once more whenever a tensor is met that is not known yet.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adamas.engines.bookkeeping.counts import user_line
from adamas.errors import UnsupportedError


class Unseen(Exception):
    """Raised for an unknown tensor; a forward under `Below` tells whether it is a constant."""


def check_modules(model: nn.Module) -> None:
    """Raises if a module computes without calling functions of torch from Python."""
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule"
        if isinstance(module, torch.jit.ScriptModule) or compiled:
            kind = "compiled by torch.compile" if compiled else "a TorchScript module"
            raise UnsupportedError(
                f"{name or 'the model'} is {kind}, whose functions the engine cannot see. Pass the plain "
                "module, or use engine='loop'."
            )


class Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows data by its memory, and raises if a function that the recorder did not see computes with it.

    Args:
        inputs: The tensors of the batch.
        inside: Tells whether a function is being followed at the moment.
    """

    def __init__(self, inputs: list[Tensor], inside: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = inside
        self.refusal: UnsupportedError | None = None
        # Storages are kept alive, so that their memory is not reused.
        self._data = {s.data_ptr(): s for s in (x.untyped_storage() for x in inputs)}
        self._made: dict[int, Any] = {}
        self._new: set[int] = set()

    def __enter__(self) -> "Below":
        gc.collect(0)  # from now on, new objects are in the youngest generation, or leave it by `_collected`
        gc.callbacks.append(self._collected)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._new.update(map(id, gc.get_objects(0)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the recorder need not see how it is watched
            return self._followed(func, args, kwargs or {})

    def _followed(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        tainted = any(self.holds(t) for t in tensors)
        inside = self._inside()
        if tainted and not inside:
            self.refusal = UnsupportedError(
                f"The forward computes {func.__name__.split('.')[0]} on the batch where the engine cannot "
                "see it (TorchScript, a compiled function or an extension). Call functions of torch from "
                "Python, or use engine='loop'."
            )
            raise self.refusal
        result = func(*args, **kwargs)
        if tainted:
            self._hold(result, self._data)
        elif not inside and (func is torch.ops.aten.lift_fresh.default or all(map(self.made, tensors))):
            self._hold(result, self._made)
        return result

    def _hold(self, result: Any, storages: dict[int, Any]) -> None:
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and t.layout == torch.strided:
                storage = t.untyped_storage()
                storages.setdefault(storage.data_ptr(), storage)

    def holds(self, t: Tensor) -> bool:
        """Tells whether a tensor's memory holds data of the batch."""
        return t.layout == torch.strided and t.untyped_storage().data_ptr() in self._data

    def made(self, t: Tensor) -> bool:
        """Tells whether a tensor was made of constants, unseen by the recorder, as by `torch.Tensor(3)`."""
        return t.layout == torch.strided and t.untyped_storage().data_ptr() in self._made

    def is_new(self, t: Tensor) -> bool:
        """Tells whether a tensor was not there before the forward."""
        return id(t) in self._new or any(t is other for other in gc.get_objects(0))


# --- what no mode of torch sees, whoever looks ------------------------------------------------------------


def _shown(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wraps a function so that the modes of torch see its calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function(args):
            script = getattr(args[0], "_torchdynamo_inline", None)
            if script is not None:  # the Python function that it was compiled from, whose calls are seen
                return script(*args[1:], **kwargs)
            return handle_torch_function(call, args, *args, **kwargs)
        return function(*args, **kwargs)

    call.__name__ = name
    return call


def _dispatched(function: Callable[..., Any], _: str) -> Callable[..., Any]:
    """Wraps a function that some versions of torch show to modes, and others do not: all do now."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if has_torch_function(given):
            return handle_torch_function(function, given, *args, **kwargs)
        return function(*args, **kwargs)

    return call


def _refused(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wraps a function so that it raises in a thread whose forward is followed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in _in_sight:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_STANDARD):
                frame = frame.f_back
            if frame.f_globals.get("__name__") != _OWN_THREADS:
                raise UnsupportedError(
                    f"The forward hands work to another thread or process ({user_line()}), where the engine "
                    "cannot see it. Compute it in the forward itself, or use engine='loop'."
                )
        return function(*args, **kwargs)

    return call


_OWN_THREADS = "adamas._numerics.threads"
_STANDARD = ("concurrent.", "threading", "multiprocessing.", __name__)  # look for the caller of these
_HIDDEN: list[tuple[Any, str, str]] = [
    (torch, "from_numpy", "from_numpy"),
    (torch, "frombuffer", "frombuffer"),
    (torch.Tensor, "set_", "set_"),
    (torch._C.ScriptFunction, "__call__", "a TorchScript function"),
    (torch._C.ScriptMethod, "__call__", "a TorchScript method"),
]
_HANDING_OVER: list[tuple[Any, str, str]] = [
    (owner, name, name)
    for owner, names in (
        (threading.Thread, ("start",)),
        (BaseProcess, ("start",)),
        (ThreadPoolExecutor, ("submit",)),
        (ProcessPoolExecutor, ("submit",)),
        (Pool, ("apply_async", "map_async", "starmap_async", "_map_async", "imap", "imap_unordered")),
    )
    for name in names
]


_EXCHANGED = [
    *((*entry, _shown) for entry in _HIDDEN),
    (torch.autograd, "backward", "backward", _dispatched),  # a re-entrant checkpoint calls it
    *((*entry, _refused) for entry in _HANDING_OVER),
]
_in_sight: set[int] = set()  # threads
_stand_ins: dict[tuple[Any, str], tuple[Any, Any]] = {}  # a function, and its replacement


@contextmanager
def in_sight() -> Iterator[None]:
    """Shows the functions that torch hides from its modes, and refuses to hand work to other threads."""
    thread = threading.get_ident()
    if thread in _in_sight:
        yield
        return
    before = [(owner, name, vars(owner).get(name)) for owner, name, _, _ in _EXCHANGED]
    for owner, name, shown, change in _EXCHANGED:
        setattr(owner, name, _stand_in(owner, name, shown, change))
    _in_sight.add(thread)
    try:
        yield
    finally:
        _in_sight.remove(thread)
        for owner, name, own in before:
            if own is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _stand_in(owner: Any, name: str, shown: str, change: Callable[..., Any]) -> Any:
    """Returns the replacement of a function, the same each time unless other code replaced the function."""
    found = getattr(owner, name)
    known = _stand_ins.get((owner, name))
    if known is None or known[0] is not found:
        known = _stand_ins[owner, name] = found, change(found, shown)
    return known[1]


@contextmanager
def own_refusal(below: Below) -> Iterator[None]:
    """Raises the refusal of `below` as it was, whatever TorchScript makes of it."""
    try:
        yield
    except RuntimeError as error:
        if below.refusal is None:
            raise
        raise below.refusal from error
