"""Knows which tensors of a running model are weights, which are data, and where the examples of the data are.

A tensor carries a mark: the place of its examples, or the reason why they are mixed. Mixed values may be
computed (a logged average); they may not reach a weight, the losses, or anything that outlives the step.
"""

import sys
import weakref
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode

from adamas.engines.bookkeeping.arguments import tensors_in
from adamas.engines.bookkeeping.counts import Count, Shape, Unit, user_line
from adamas.engines.bookkeeping.places import FIRST, Place, Rows
from adamas.engines.bookkeeping.records import Record
from adamas.engines.bookkeeping.separation import CONSTANT, MARK, PACKED_SIZES, Mark
from adamas.engines.bookkeeping.unseen import Below, Unseen
from adamas.engines.leaves import refuse_leaf
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry

_OWN = str(Path(__file__).parents[2])

# Parts of torch that compare the shapes of gradients and of what was computed again.
_PLAIN_SIZES = {torch.autograd.__file__, torch.utils.checkpoint.__file__}


class Tracker(TorchFunctionMode):
    """Knows which tensors are weights, and where the examples of the others are; keeps the records in `uses`.

    Args:
        names: The trainable parameters and their names.
        n: Number of examples, two or more.
        geometry: The geometry of the step, so that some norms can be taken in the backward.
        constants: Tensors that existed before the forward, by identity; None to take every tensor without a
            mark for a constant.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        n: int,
        geometry: Geometry,
        constants: "dict[int, weakref.ref[Tensor]] | None" = None,
    ) -> None:
        super().__init__()
        self.names, self.n, self.geometry = names, n, geometry
        self.unit = Unit(n)
        self.uses: dict[int, tuple[Tensor, list[Record]]] = {}
        self.anchor = torch.zeros((), requires_grad=True, device=next(iter(names)).device)
        self.tracked: dict[int, Tensor] = {id(p): p for p in names}
        # Packed sequences by the identity of their rows: those rows, the order of the examples, the lengths.
        self.packed: dict[int, tuple[Rows, Place, Tensor]] = {}
        self.in_backward = False
        self.in_custom = False  # in the backward of a custom function
        self.customs: set[int] = set()  # nodes of custom functions whose backward is checked
        self.constants = constants
        self.below: Below | None = None  # watches below the functions of Python
        self.met_unknown = False  # whether `Unseen` was raised, which the user's code may catch
        self.makes_unseen = False  # whether a constant was made where only `below` sees it

    # --- marks ----------------------------------------------------------------------------------------

    def mark(self, t: Tensor) -> Mark | None:
        """Returns what is known of a tensor; None for a constant and for a weight."""
        known: Any = t.__dict__.get(MARK)
        if known is not None and known.owner is self.unit:
            mark: Mark = known
            return mark
        if known is None or known is CONSTANT:
            if id(t) in self.tracked:
                return None
            if t.requires_grad:
                if t.grad_fn is not None:
                    why = "a tensor comes from a function that the engine does not see"
                    return Mark(self.unit, None, why)
                if torch.is_grad_enabled() and not self.in_backward:
                    refuse_leaf(t)
            if known is None:
                self._check_known(t)
            return None
        return Mark(self.unit, None, "a tensor of an earlier step is used again")

    def set_mark(self, t: Tensor, found: Place | Mark | None) -> None:
        """Notes what is known of a tensor."""
        if isinstance(found, Place):
            found = Mark(self.unit, found)
        t.__dict__[MARK] = CONSTANT if found is None else found

    def _check_known(self, t: Tensor) -> None:
        """Raises unless a tensor without a mark existed before the forward, or is made of constants only."""
        if self.constants is None or t.grad_fn is not None or id(t) in self.tracked:
            return
        known = self.constants.get(id(t))
        if (known is not None and known() is t) or (self.in_backward and not self.in_custom):
            return
        if self.in_custom:
            self.refuse_mixing(f"a backward uses a tensor that the forward did not know ({user_line()})")
        if self.below is None:
            self.met_unknown = True
            raise Unseen
        if not self.below.is_new(t):
            self.constants[id(t)] = weakref.ref(t)
        elif self.below.made(t):
            self.set_mark(t, None)
            self.makes_unseen = True
        else:
            raise UnsupportedError(
                f"The forward uses a tensor ({user_line()}) that was made where the engine cannot see it "
                "(another thread, a compiled function or an extension), so that it may depend on the batch. "
                "Make it before the forward, or by a function of torch, or use engine='loop'."
            )

    def start(self, x: Tensor) -> Tensor:
        """Returns a tensor of the batch as data of this step, with the examples first."""
        with torch._C.DisableTorchFunction():
            x = x.detach()
        x.__dict__[MARK] = Mark(self.unit, FIRST)
        return x

    def is_tracked(self, t: Any) -> bool:
        """Tells whether a value is a trainable parameter, or derived from some."""
        return isinstance(t, Tensor) and id(t) in self.tracked

    def is_data(self, t: Tensor) -> bool:
        """Tells whether a tensor may hold something that differs from example to example."""
        if id(t) in self.tracked:
            return False
        mark = t.__dict__.get(MARK)
        if mark is None or mark.owner is not self.unit:
            mark = self.mark(t)
        return mark is not None and not mark.made

    def place(self, t: Tensor) -> Place:
        """Returns where the examples of data are; raises if they are mixed."""
        mark = self.mark(t)
        assert mark is not None
        if mark.place is None:
            self.refuse_mixing(mark.why or "")
        return mark.place

    def has_numbers(self, t: Tensor) -> bool:
        """Tells whether the values of data are the positions of the examples."""
        mark = t.__dict__.get(MARK)
        return mark is not None and mark.numbers

    def clean(self, x: Tensor, *weights: Tensor | None) -> bool:
        """Tells whether fast formulas apply: the input is data, and no weight is."""
        return self.is_data(x) and all(w is None or not self.is_data(w) for w in weights)

    def refuse_mixing(self, why: str) -> NoReturn:
        """Raises, with the reason."""
        raise UnsupportedError(
            f"loss(model, batch) is not proven to keep its examples apart: {why}. A loss that mixes them "
            "lets one record change the gradients of others, which clipping does not bound. Make each loss "
            "a function of its own example, or use engine='vmap' or engine='loop', which compute each "
            "example by itself."
        )

    # --- sizes ----------------------------------------------------------------------------------------

    def length(self, t: Tensor) -> Any:
        """Returns the length of a tensor; replaces `len` while the model runs."""
        if t.dim() == 0:
            return t.__len__()  # type: ignore[no-untyped-call]
        if MARK not in t.__dict__ and not sys._getframe(2).f_code.co_filename.startswith(_OWN):
            self._check_known(t)
        return self.shape(t)[0]

    def shape(self, t: Tensor) -> Any:
        """Returns the shape of a tensor, with a `Count` where the examples are."""
        mark = t.__dict__.get(MARK)
        size = t.size()
        if mark is CONSTANT:
            return size
        if sys._getframe(3).f_code.co_filename in _PLAIN_SIZES:
            return size
        if mark is None or mark.owner is not self.unit or mark.made or mark.why == PACKED_SIZES:
            return size
        if mark.place is None:  # mixed values may have decided the sizes
            return Shape([Count(1, Unit(length, chosen=True)) for length in size])
        place: Place = mark.place
        unit = self.unit if place.rows is None or not place.rows.chosen else place.rows
        sizes: list[Any] = list(size)
        sizes[place.axis] = Count(place.outer * place.inner, unit)
        return Shape(sizes)

    # --- names and records ----------------------------------------------------------------------------

    def names_in(self, *values: Any) -> str:
        """Returns the names of the followed weights among some values, for a message."""
        found = [repr(self.name(t)) for t in tensors_in(values) if self.is_tracked(t)]
        return ", ".join(dict.fromkeys(found))

    def name(self, t: Tensor) -> str:
        """Returns the name of a followed weight."""
        return self.names.get(t) or f"a weight of shape {tuple(t.shape)} derived from parameters"

    def outside(self) -> bool:
        """Tells whether the running backward is the user's, as of an adversarial step, without records."""
        if not self.in_backward and torch.is_grad_enabled():
            raise UnsupportedError(
                "The loss differentiates its own gradient, which engine='bookkeeping' cannot follow. Use "
                "engine='vmap' or engine='loop'."
            )
        return not self.in_backward

    def add(self, weight: Tensor, record: Record, function: str) -> None:
        """Keeps the record of a use of a weight by a function."""
        record.function = function
        self.uses.setdefault(id(weight), (weight, []))[1].append(record)
