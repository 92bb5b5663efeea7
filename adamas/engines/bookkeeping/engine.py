"""Answers an engine's questions from one forward and one backward of the whole batch.

`recording` follows both, and proves in every step that examples do not mix. Norms come from the records by
the cheapest exact formula. The weighted sum is one matrix product per use of a weight, with the rows of the
output gradient scaled by the weights.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from adamas._nests import batch_length, map_tensors
from adamas._numerics import sums_kernel
from adamas.engines.base import Engine, Loss, check_losses, empty_sums, trainable_parameters
from adamas.engines.bookkeeping.derived import Derived, add_derived_sums, derived_squares, grouped
from adamas.engines.bookkeeping.norms import merged, squared_whitened_norms
from adamas.engines.bookkeeping.recording import Recorder
from adamas.engines.bookkeeping.records import Record, add_weighted_sum
from adamas.engines.bookkeeping.unseen import Unseen, in_sight
from adamas.engines.explain import Cost, Explanation
from adamas.engines.loop import Loop
from adamas.engines.probes import PROBE_EXAMPLES, check_loss, unchanged_generator
from adamas.geometry import Geometry


@dataclass
class _Known:
    """Facts about a model that are learned once.

    Attributes:
        checked: Whether its loss was tried on a few examples.
        single: Whether a batch of one example runs the same code as a larger one; None if not known yet.
        watched: Whether its forwards make tensors that only a watched forward can explain.
        constants: Tensors that existed before its forwards, by identity.
    """

    checked: bool = False
    single: bool | None = None
    watched: bool = False
    constants: dict[int, ref[Tensor]] = field(default_factory=dict)


# For each model, loss and training mode.
_known: WeakKeyDictionary[nn.Module, dict[Any, _Known]] = WeakKeyDictionary()


class Bookkeeping:
    """Answers an engine's questions for any model whose use of its parameters it can follow.

    Needs: losses that depend each on its own example; a use that cannot be followed is refused with
    the parameter's name. Memory: inputs and output gradients of the layers, and chunks of a layer's
    per-example gradients.

    Args:
        model: The model, as it is; it is neither wrapped nor changed.
        loss: One loss per example.
        batch: Tensors with the example axis first, nested in mappings, lists or tuples.
    """

    def __init__(self, model: nn.Module, loss: Loss, batch: Any) -> None:
        self._model, self._loss, self._batch = model, loss, batch
        self._n = batch_length(batch)
        self._names: dict[Tensor, str] = {p: name for name, p in trainable_parameters(model).items()}
        key = (getattr(loss, "__code__", loss), tuple(m.training for m in model.modules()))
        self._known = _known.setdefault(model, {}).setdefault(key, _Known())
        self._single: Engine | None = None
        self._direct: dict[Tensor, list[Record]] | None = None
        self._derived: Derived = []
        # The functions that used a weight, and the seconds that its norms took in the backward.
        self._uses: dict[Tensor, tuple[str, float]] = {}
        self._finite: Tensor | None = None

    def norms(self, geometry: Geometry) -> Tensor:
        """See `Engine.norms`."""
        device = next(iter(self._names)).device
        total = torch.zeros(self._n, dtype=torch.float64, device=device)
        if not self._n:
            return total
        if self._n == 1:
            return self._of_one().norms(geometry)[:1]
        direct = self._records(geometry)
        with torch.no_grad():
            groups = grouped(self._derived, self._names.keys())
            leaves = {leaf for group, _ in groups for leaf in group}
            for p in self._names:
                if p in leaves:
                    continue
                if p in direct:
                    total += squared_whitened_norms(direct[p], p, geometry)
                elif geometry.center_of(p) is not None:  # an unused parameter: g = 0 for every example
                    total += geometry.center_square(p)
            for group, members in groups:
                total += derived_squares(group, members, direct, geometry)
        norms = total.sqrt()
        self._finite = norms.isfinite()
        return norms

    def weighted_sum(
        self, weights: Tensor, out: Mapping[Tensor, Tensor] | None = None, *, accumulate: bool = False
    ) -> Mapping[Tensor, Tensor]:
        """See `Engine.weighted_sum`."""
        if self._n == 1:
            engine = self._of_one()
            if not isinstance(engine, Loop):
                weights = torch.cat([weights, torch.zeros_like(weights)])
            return engine.weighted_sum(weights, out, accumulate=accumulate)
        result = empty_sums(self._names) if out is None else out
        fresh = out is None or not accumulate
        direct, derived, weights = self._summands(weights)
        with torch.no_grad():
            for p, total in result.items():
                if p in direct:
                    add_weighted_sum(direct[p], weights, total, fresh=fresh)
                elif fresh:
                    total.zero_()
        add_derived_sums(derived, weights, result)
        return result

    def _summands(self, weights: Tensor) -> tuple[dict[Tensor, list[Record]], Derived, Tensor]:
        """Returns the records that enter a sum, of parameters and derived weights, and the weights."""
        if not self._n:
            return {}, [], weights
        if self._direct is None:
            self.norms(Geometry.ball(self._names))
        assert self._direct is not None
        assert self._finite is not None
        direct, derived = self._direct, self._derived
        rows = (weights != 0) | self._finite
        if not rows.all():  # 0 x NaN is NaN: such examples must not enter a product
            if not rows.any():
                return {}, [], weights
            weights = weights[rows]
            direct = {p: [r.kept(rows) for r in records] for p, records in direct.items()}
            derived = [(t, [r.kept(rows) for r in records]) for t, records in derived]
        return direct, derived, weights

    def explain(self, geometry: Geometry) -> Explanation:
        """Measures the cost of norms and weighted sum, parameter by parameter."""
        if self._n == 1:
            return self._doubled().explain(geometry)
        start = time.perf_counter()
        direct = self._records(geometry)
        rest = time.perf_counter() - start - sum(seconds for _, seconds in self._uses.values())
        costs: dict[Tensor, Cost] = {}
        counted: set[int] = set()

        def add(
            p: Tensor, weights: list[Tensor], records: list[Record], formula: str, seconds: float
        ) -> None:
            held = {t.untyped_storage().data_ptr(): t.nbytes for r in records for t in r.tensors()}
            size = sum(nbytes for place, nbytes in held.items() if place not in counted)
            counted.update(held)
            function = ", ".join(dict.fromkeys(self._uses[t][0] for t in weights))
            again = max((int(r.retaken.sum()) for r in records if r.retaken is not None), default=0)
            costs[p] = Cost(self._names[p], tuple(p.shape), function, formula, seconds, size, again)

        ones = torch.ones(self._n, dtype=torch.float64, device=next(iter(self._names)).device)
        with torch.no_grad():
            for group, members in grouped(self._derived, self._names.keys()):
                records = [r for _, each in members for r in each]
                closed = len(records) == 1 and records[0].whitened is not None
                start = time.perf_counter()
                derived_squares(group, members, direct, geometry)
                for t, each in members:
                    add_weighted_sum(each, ones, torch.empty_like(t), fresh=True)
                seconds = time.perf_counter() - start + sum(self._uses[t][1] for t, _ in members)
                formula = "closed form of normalised rows" if closed else "Jacobian products in chunks"
                for p in group:
                    own = direct.get(p, [])
                    weights = [t for t, _ in members] + ([p] if own else [])
                    add(p, weights, records + own, formula, seconds / len(group))
            for p in self._names:
                if p in direct and p not in costs:
                    records = direct[p]
                    start = time.perf_counter()
                    squared_whitened_norms(records, p, geometry)
                    add_weighted_sum(records, ones, torch.empty_like(p), fresh=True)
                    seconds = time.perf_counter() - start + self._uses[p][1]
                    full = isinstance(geometry.scale[p], Tensor)
                    add(p, [p], records, " + ".join(dict.fromkeys(r.formula(full) for r in records)), seconds)
        for p in self._names:
            if p not in costs:
                add(p, [], [], "", 0.0)
        return Explanation("bookkeeping", None, self._n, max(rest, 0.0), [costs[p] for p in self._names])

    # --- recording ------------------------------------------------------------------------------------

    def _records(self, geometry: Geometry) -> dict[Tensor, list[Record]]:
        if self._direct is None:
            self._record(geometry)
        else:  # norms that were taken in the backward hold in one geometry only
            for records in [*self._direct.values(), *(records for _, records in self._derived)]:
                for record in records:
                    record.whitened = None
        assert self._direct is not None
        return self._direct

    def _record(self, geometry: Geometry) -> None:
        first = not self._known.checked
        if first:
            sums_kernel.available()  # compiles with the real `len`, which a forward exchanges
            few = min(self._n, PROBE_EXAMPLES)
            with unchanged_generator():
                sample = map_tensors(lambda x: x[:few].detach(), self._batch)
                check_loss(self._model, self._loss, sample)
        state = torch.get_rng_state()
        with in_sight():
            try:
                recorder, losses = self._forward(geometry, first or self._known.watched)
            except Unseen:  # once more, with the same random draws
                torch.set_rng_state(state)
                recorder, losses = self._forward(geometry, watched=True)
            with torch.enable_grad():
                recorder.backward(losses)
        self._known.checked = True
        if self._known.single is not False:
            self._known.single = not recorder.unit.single_differs
        self._direct = {}
        for t, records in recorder.uses.values():
            functions = dict.fromkeys(record.function for record in records)
            self._uses[t] = ", ".join(functions), sum(record.seconds for record in records)
            if t in self._names:
                self._direct[t] = merged(records)
            else:
                self._derived.append((t, merged(records)))

    def _forward(self, geometry: Geometry, watched: bool) -> tuple[Recorder, Tensor]:
        """Computes the losses under a recorder, if `watched` also below the functions of Python."""
        recorder = Recorder(self._names, self._n, geometry, self._known.constants)
        with recorder:  # a batch of the user's own class may compute when it is built
            batch = map_tensors(recorder.start, self._batch)
        with torch.enable_grad():
            losses = recorder.losses(self._loss, self._model, batch, watched=watched)
        self._known.watched |= recorder.makes_unseen
        return recorder, check_losses(losses, self._n)

    # --- a batch of one -------------------------------------------------------------------------------

    def _of_one(self) -> Engine:
        """Returns the engine for a single example: plain autograd if one runs the same code as several.

        Until that is known, and for a model that asks whether it has one example, the batch is doubled.
        """
        if self._single is None:
            if self._known.single:
                self._single = Loop(self._model, self._loss, self._batch)
                self._single.cache_bytes = 1 << 62  # one gradient, whatever its size
            else:
                self._single = self._doubled()
        return self._single

    def _doubled(self) -> "Bookkeeping":
        return Bookkeeping(self._model, self._loss, map_tensors(lambda x: torch.cat([x, x]), self._batch))
