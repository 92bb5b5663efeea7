"""Deferred values: tensors of a batch that is not loaded yet. Computing with them records the computation."""

import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from adamas._nests import map_leaves, named_leaves
from adamas.engines.bookkeeping.counts import user_line
from adamas.errors import UnsupportedError
from adamas.integrations.opacus import reductions
from adamas.integrations.opacus.program import Leaf, Node, check_call
from adamas.integrations.opacus.refusals import (
    refuse_in_place,
    refuse_mixing,
    refuse_of_loss,
    refuse_parts,
    refuse_value,
)
from adamas.integrations.opacus.turn import Turn

_READ = frozenset({"item", "tolist", "numpy", "storage", "untyped_storage", "data_ptr"})
_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad"})


class Deferred:
    """A tensor of the current batch, or a result that the loop computes from it. It has no value.

    Torch's functions, the methods of tensors and the private module accept it, and return deferred values.
    Any use that needs a value is refused.
    """

    __slots__ = ("_node", "_turn")
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to this class

    def __init__(self, node: Leaf | Node, turn: Turn) -> None:
        self._node, self._turn = node, turn

    def __repr__(self) -> str:
        return "Deferred(a value of private data)"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"A deferred value has no attribute {name!r}.")
        if name in _READ:
            refuse_value(f".{name}()")
        if name in _HOOKS or (name.endswith("_") and hasattr(Tensor, name)):
            refuse_in_place()
        if callable(getattr(Tensor, name, None)):
            return _Method(self, name)
        return recorded(getattr, (self, name), {})

    def backward(self, *_: Any, **__: Any) -> NoReturn:
        """Refuses: per-example values are not a loss of the batch."""
        raise UnsupportedError(
            f"Expected backward() of a mean or sum over all examples ({user_line()}), got another value, or "
            "a mean that the module took itself, which cannot be taken apart. Compute the losses of the "
            "examples in the loop, from the module's output, and call losses.mean().backward()."
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Records a call of torch."""
        return _recorded_call(func, args, dict(kwargs or {}))

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        refuse_in_place()

    def __iter__(self) -> NoReturn:
        refuse_parts()

    __hash__ = object.__hash__


class _Method:
    """A method of a deferred value, to be called."""

    def __init__(self, value: Deferred, name: str) -> None:
        self._value, self._name = value, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._name in ("mean", "sum") and not args and not kwargs:
            return _reduced(self._value, self._name)
        return recorded(_call_method, (self._value, self._name, *args), kwargs)


class DeferredLoss:
    """The mean or the sum of the losses of a batch. It has no value.

    It can be scaled and added to other losses of the batch. `backward()` releases its private gradient.
    """

    __slots__ = ("_each", "_reduction")
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, each: Deferred, reduction: str) -> None:
        self._each, self._reduction = each, reduction

    def __repr__(self) -> str:
        return f"DeferredLoss({self._reduction} of private losses)"

    def backward(
        self, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """Releases the private gradient of the batch, and writes it into `p.grad` of each parameter.

        The arguments are those of `Tensor.backward`, and must keep their defaults.

        Raises:
            RuntimeError: If the batch was released before, or is not the current one.
            BudgetError: If the budget does not pay for it.
            UnsupportedError: If the examples cannot be told apart.
        """
        if gradient is not None or retain_graph or create_graph or inputs is not None:
            raise UnsupportedError(
                f"Expected backward() without arguments ({user_line()}): a batch is released once, for all "
                "parameters, and its gradients have none of their own. Scale the loss in place of gradient=, "
                "and freeze parameters in place of inputs=."
            )
        turn = self._each._turn
        if self._reduction != turn.reduction:
            raise ValueError(
                f"Expected a loss with reduction={turn.reduction!r}, the loss_reduction of make_private, got "
                f"{self._reduction!r} ({user_line()}). Give both the same reduction."
            )
        turn.backward(self._each._node)

    def detach(self) -> "DeferredLoss":
        """Returns the loss without a gradient. It has no value either."""
        return DeferredLoss(recorded(_call_method, (self._each, "detach"), {}), self._reduction)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"A deferred loss has no attribute {name!r}.")
        if hasattr(Tensor, name) and name not in _READ:
            refuse_of_loss(f".{name}")
        refuse_value(f".{name}()")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes a tensor times or plus a loss, and refuses other functions."""
        name = getattr(func, "__name__", "a function")
        function = {"mul": operator.mul, "add": operator.add}.get(name)
        if function is None or len(args) != 2 or kwargs:
            refuse_of_loss(name)
        first, second = args
        return _combined(function, *((first, second) if isinstance(first, cls) else (second, first)))

    def __add__(self, other: Any) -> "DeferredLoss":
        return _combined(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "DeferredLoss":
        return _combined(operator.sub, self, other)

    def __rsub__(self, other: Any) -> "DeferredLoss":
        return _combined(operator.add, -self, other)

    def __mul__(self, other: Any) -> "DeferredLoss":
        return _combined(operator.mul, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "DeferredLoss":
        return _combined(operator.truediv, self, other)

    def __neg__(self) -> "DeferredLoss":
        return _combined(operator.mul, self, -1.0)


def _combined(function: Callable[[Any, Any], Any], loss: DeferredLoss, other: Any) -> DeferredLoss:
    """Adds two losses, or scales or shifts one."""
    if isinstance(other, DeferredLoss) and function in (operator.add, operator.sub):
        if other._reduction != loss._reduction:
            raise ValueError(
                f"Expected losses with one reduction, got {loss._reduction!r} and {other._reduction!r} "
                f"({user_line()})."
            )
        return DeferredLoss(recorded(function, (loss._each, other._each), {}), loss._reduction)
    if isinstance(other, Real) or (isinstance(other, Tensor) and other.dim() == 0):
        return DeferredLoss(recorded(function, (loss._each, other), {}), loss._reduction)
    refuse_of_loss(f"{function.__name__} with a {type(other).__name__}")


def _call_method(value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(value, name)(*args, **kwargs)


def recorded(
    function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Deferred:
    """Records a call on values of one batch; None calls the model.

    Raises:
        UnsupportedError: If it could not run later with the same result.
        RuntimeError: If the values are of several batches.
    """
    values = [value for _, value in named_leaves([list(args), dict(kwargs)])]
    if any(isinstance(value, DeferredLoss) for value in values):
        refuse_mixing()
    turn, *others = {value._turn for value in values if isinstance(value, Deferred)}
    if others:
        raise RuntimeError(
            f"Expected values of one batch, got values of several turns of the loop ({user_line()}). Do "
            "not keep values of a batch for the next one."
        )
    plain = map_leaves(Deferred, lambda value: value._node, (tuple(args), dict(kwargs)))
    return Deferred(check_call(Node(function, *plain)), turn)


def are_of(model: nn.Module, values: Any) -> bool:
    """Tells whether a nest of values holds those of a batch on which a model is trained."""
    leaves = (value for _, value in named_leaves(values))
    return any(
        isinstance(value, DeferredLoss) or (isinstance(value, Deferred) and value._turn.model is model)
        for value in leaves
    )


def _recorded_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Records a call of torch; a loss function that averages becomes a loss of each example."""
    name = getattr(func, "__name__", "")
    if (name.endswith("_") and not name.startswith("__")) or kwargs.get("inplace") or "out" in kwargs:
        refuse_in_place()
    if func in (torch.mean, torch.sum, Tensor.mean, Tensor.sum) and len(args) == 1 and not kwargs:
        return _reduced(args[0], name)
    form = reductions.of(func, args, kwargs)
    if form is None:
        return recorded(func, args, kwargs)
    values = (value for _, value in named_leaves([list(args), kwargs]))
    turn = next(value._turn for value in values if isinstance(value, Deferred))
    return DeferredLoss(recorded(form.each, (Deferred(Leaf(None), turn), *args), kwargs), form.reduction)


def _reduced(value: Deferred, reduction: str) -> DeferredLoss:
    """Returns the mean or sum over all of a value."""
    each = reductions.mean_of_each if reduction == "mean" else reductions.sum_of_each
    return DeferredLoss(recorded(each, (Deferred(Leaf(None), value._turn), value), {}), reduction)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: recorded(function, (self, other), {})


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: recorded(function, (other, self), {})


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: recorded(function, (self,), {})


def _refused(name: str) -> Callable[..., NoReturn]:
    return lambda self, *_: refuse_value(name)


def _changed(self: Any, other: Any) -> NoReturn:
    refuse_in_place()


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift")
_LOGIC = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
for _name, _function in ({name: getattr(operator, name) for name in _ARITHMETIC} | _LOGIC).items():
    setattr(Deferred, f"__{_name}__", _binary(_function))
    setattr(Deferred, f"__r{_name}__", _reflected(_function))
    setattr(Deferred, f"__i{_name}__", _changed)
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "getitem"):
    setattr(Deferred, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Deferred, f"__{_name}__", _unary(getattr(operator, _name)))
for _kind in (Deferred, DeferredLoss):
    for _name in ("bool", "int", "float", "complex", "index", "len", "array", "format", "round"):
        setattr(_kind, f"__{_name}__", _refused(f"{_name}()"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(DeferredLoss, f"__{_name}__", _refused("a comparison"))
