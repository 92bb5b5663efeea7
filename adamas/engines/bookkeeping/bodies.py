"""Runs Python functions of torch through their own bodies, so that the calls inside them are seen."""

import types
from collections.abc import Callable
from typing import Any

from torch.nn import functional as F

WRITTEN_OUT: set[Any] = {F.multi_head_attention_forward, F.gumbel_softmax, F.triplet_margin_loss}
"""Functions that are always followed through their bodies, although the table may have a row for them."""

_seen_bodies: dict[Any, Callable[..., Any]] = {}


def seen_body(func: Any) -> Callable[..., Any] | None:
    """Returns a Python function of torch that skips its own dispatch to modes; None if it is not one."""
    if func in _seen_bodies:
        return _seen_bodies[func]
    module = getattr(func, "__module__", None) or ""
    if not isinstance(func, types.FunctionType) or not module.startswith("torch."):
        return None
    space = dict(func.__globals__)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        space[name] = lambda *_: False
    copy = types.FunctionType(func.__code__, space, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    _seen_bodies[func] = copy
    return copy
