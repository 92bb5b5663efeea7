"""Makes the releases of one private training, turn by turn of the user's loop."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from adamas._guards.collate import Collated
from adamas._nests import map_leaves, named_tensors
from adamas._words import limit
from adamas.accounting import Plan
from adamas.engines import ENGINES, FAST
from adamas.errors import BudgetError, SlowEngineWarning
from adamas.integrations.opacus.deferred import Deferred
from adamas.integrations.opacus.failures import concealed, told
from adamas.integrations.opacus.optimizer import Gate
from adamas.integrations.opacus.program import Leaf, Node, Program
from adamas.integrations.opacus.turn import Turn
from adamas.loading import Batch
from adamas.privatize import PrivateGradient
from adamas.run.arguments import warn_if_evaluating
from adamas.run.make import made
from adamas.run.probing import probed, probed_before
from adamas.run.rule_state import RuleState
from adamas.run.validation import Validated


class Replayed:
    """The loss of a run: the program that the current turn of the loop has recorded."""

    def __init__(self) -> None:
        self.program: Program | None = None

    def loss(self) -> Callable[[nn.Module, Any], Tensor]:
        """Returns the loss function, which stays the same object."""

        def replayed(model: nn.Module, batch: Any) -> Tensor:
            if self.program is None:
                raise RuntimeError(
                    "Expected a loss that the loop has computed: the run knows it from the first "
                    "loss.backward() on."
                )
            return self.program(model, batch)

        return replayed


class Training:
    """Makes the releases of a loop that computes on deferred values.

    Args:
        arguments: Those of the run.
        plan: Its steps, noise and budget.
        replayed: Where the run's loss finds its program.
        steps_per_epoch: Turns of the data loader.
        reduction: "mean" divides the sum of the clipped gradients by the expected batch size; "sum" does not.

    Attributes:
        run: The run.
        steps_per_epoch: As given.
    """

    def __init__(
        self, arguments: Validated, plan: Plan, replayed: Replayed, *, steps_per_epoch: int, reduction: str
    ) -> None:
        self.run = made(arguments, probed_before(arguments, FAST), plan)
        RuleState.of(self.run.rule).remedy = "PrivacyEngine.load_checkpoint"
        self.steps_per_epoch = steps_per_epoch
        self._arguments, self._replayed, self._reduction = arguments, replayed, reduction
        self._gate = Gate.of(arguments.rule)
        self._engines: dict[tuple[Any, ...], str] = {}
        self._turn: Turn | None = None
        self._batches: Iterator[Batch] | None = None
        self._example = concealed(self._first, lambda: None, "Loading the first example")

    def _first(self) -> Any:
        """Loads one example, which shows the form of a batch."""
        loader, rows = self.run.loader, np.arange(1)
        loaded = loader.load(rows, loader.state_of(0, 0))
        return loader.check(loaded.data if isinstance(loaded, Collated) else loaded, rows)

    def turns(self) -> Iterator[Any]:
        """Yields the deferred batches of one epoch, or of what the budget still pays for."""
        run = self.run
        left = self.steps_per_epoch
        if run.budget is not None:
            left = min(left, run.steps - run.steps_done)
            if left == 0:
                raise BudgetError(
                    f"Expected at most {run.steps} steps, which epsilon={limit(run.budget)} pays for; all of "
                    "them are done. Give make_private_with_epsilon more epochs, or a larger target_epsilon."
                )
        for _ in range(left):
            if self._turn is not None:
                self._turn.end()
            turn = self._turn = Turn(self._release, self._reduction, self._arguments.model)
            yield self._deferred(turn)

    def _deferred(self, turn: Turn) -> Any:
        """Returns a batch with a deferred value in place of each tensor."""
        names = (name for name, _ in named_tensors(self._example))
        return map_leaves(Tensor, lambda _: Deferred(Leaf(next(names)), turn), self._example)

    @contextmanager
    def micro_batches(self, size: int) -> Iterator[None]:
        """Loads at most `size` examples at once within the block, which changes no result."""
        loader = self.run.loader
        before = loader.micro_batch_size
        self._batches = None  # workers load ahead in the old size
        loader.micro_batch_size = size
        try:
            yield
        finally:
            self._batches = None
            loader.micro_batch_size = before

    def _release(self, loss: Leaf | Node) -> None:
        """Releases the private gradient of the next batch, and hands it to the optimizer."""
        self._gate.check_used()
        program = self._replayed.program = Program(loss)
        release = concealed(
            lambda: self._private_gradient(program),
            lambda: program.line,
            "The private step of loss.backward()",
        )
        self._gate.write(self._scaled(release))

    def _private_gradient(self, program: Program) -> PrivateGradient:
        self._choose_engine(program.signature())
        try:
            return self.run.privatize(self._next_batch())
        except BaseException:
            self._batches = None  # the next turn draws from the run's own place
            raise

    def _next_batch(self) -> Batch:
        run = self.run
        if run.steps_done >= run.steps and run.budget is None:
            run.extend(steps=self.steps_per_epoch, noise_multiplier=run.noise_multiplier)
            self._batches = None
        if self._batches is None:
            self._batches = run.batches()
        batch = next(self._batches, None)
        if batch is None:
            raise BudgetError(
                f"Expected at most {run.steps} steps, which the budget pays for; all of them are done."
            )
        return batch

    def _choose_engine(self, signature: tuple[Any, ...]) -> None:
        """Tries a new computation on a few examples, and takes the fastest engine that accepts it."""
        if signature not in self._engines:
            warn_if_evaluating(self._arguments.model, stacklevel=9)
            probes = probed(self._arguments)
            if probes.refusal is not None:
                warnings.warn(
                    f"The engine {probes.engine!r} computes each example by itself and is slower. {FAST!r} "
                    f"refuses: {told(probes.refusal)}",
                    SlowEngineWarning,
                    stacklevel=8,  # over the private step, the turn and backward
                )
            self._engines[signature] = probes.engine
        self.run.engine = self._engines[signature]
        self.run.make_engine = ENGINES[self.run.engine]

    def _scaled(self, release: PrivateGradient) -> PrivateGradient:
        if self._reduction == "mean":
            return release
        size = self.run.loader.sampler.batch_size
        return PrivateGradient(
            {p: mean * size for p, mean in release.mean.items()},
            {p: variance * size**2 for p, variance in release.noise_variance.items()},
        )
