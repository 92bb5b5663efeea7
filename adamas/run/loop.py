"""A private run: the loop that samples, clips, adds noise, records and updates."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from adamas._guards.state import Snapshot, Watch
from adamas._progress import progress_bar
from adamas.accounting import Spending
from adamas.accounting.journal import Release
from adamas.callbacks.base import Callback
from adamas.callbacks.early_stopping import check_paid, check_resumable
from adamas.callbacks.trackers import finish_trackers
from adamas.distributed import Ranks, rank_place, together, training_facts, write_once
from adamas.engines import ENGINES, FAST, READS_VALUES, Engine, EngineFactory, Loss
from adamas.loading import Batch, Loader
from adamas.noise import Noise
from adamas.privatize import PrivateGradient, privatize
from adamas.run.checkpoint import Checkpoints
from adamas.run.padding import PaddingGuard
from adamas.run.parts import RunParts
from adamas.run.preconditions import check_modules, check_parameters
from adamas.run.randomness import model_randomness
from adamas.run.saved_files import SavedFiles
from adamas.run.state import check_state, restore, settings_of, state_of
from adamas.run.statement import SEED_WARNING

__all__ = ["SEED_WARNING", "PrivateRun", "Step", "model_randomness"]

_REPLACED = "replaced"  # the name of an engine that ENGINES does not have


@dataclass(frozen=True)
class Step:
    """One finished logical step.

    Attributes:
        number: 1, 2, ...
        total: Steps of the whole run.
        release: The private gradient of the step, which is safe to publish.
        epoch: 1, 2, ...
        ends_epoch: Whether it is the last step of its epoch.
    """

    number: int
    total: int
    release: PrivateGradient
    epoch: int
    ends_epoch: bool


class PrivateRun(RunParts):
    """Differentially private training in progress; `adamas.make_private` makes it.

    Iterating trains: each turn is one logical step. Iterating again after leaving the loop continues where it
    stopped. The iteration ends after `steps` steps.

    Attributes, besides those of `RunParts`:
        ema_model: The moving average of the weights, a module to evaluate; None if not asked for.
        ranks: The processes of a data-parallel run; None for a run in one process.
        callbacks: Called after each step of the iteration, in this order.

    Example:
        >>> import torch, adamas
        >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2))
        >>> model = torch.nn.Linear(2, 1)
        >>> run = adamas.make_private(
        ...     model, adamas.rules.SGD(model.parameters()), data,
        ...     lambda model, batch: model(batch[0]).square().sum(1),
        ...     batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-3)
        >>> for step in run:
        ...     if step.number == 2: break
        >>> for step in run:  # continues
        ...     print(f"step {step.number} of {step.total}, epsilon {run.epsilon():.2f}")
        step 3 of 3, epsilon 1.84
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        rule: torch.optim.Optimizer,
        loss: Loss,
        loader: Loader,
        noise: Noise,
        engine: str,
        clip_norm: float,
        spending: Spending,
        scheduler: LRScheduler | None,
        ema_model: AveragedModel | None,
        progress: bool | None,
        raw: bool = False,
        ranks: Ranks | None = None,
        checkpoints: Checkpoints | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(model, rule, loss, loader, noise, engine, clip_norm, spending, scheduler, raw)
        self.ema_model, self.progress, self.callbacks = ema_model, progress, tuple(callbacks)
        self._stopped = False
        self._made_with = spending.plan
        self._files = SavedFiles(checkpoints, spending.use_journals)
        self._lock, self._releasing = threading.RLock(), False
        self._draws = 0  # of the noise: no less from now on
        self._watch, self._padding = Watch(), PaddingGuard()
        self.ranks = ranks
        self._check_ranks("make_private")
        if ranks is not None:
            ranks.share_seed(loader.sampler.seed)
            spending.share_account()

    def __len__(self) -> int:
        return self.steps - self.steps_done

    def __iter__(self) -> Iterator[Step]:
        with together(self.ranks):
            check_paid(
                self.callbacks, done=self.steps_done, total=self.steps, steps_per_epoch=self.steps_per_epoch
            )
        with progress_bar(
            self.progress, self.steps_done, self.steps, self.epsilon_bound, private=self.private
        ) as advance:
            for batch in self.batches():
                release = self.privatize(batch)
                release.write_to(self.rule)
                self.rule.step()
                if self.scheduler is not None:
                    self.scheduler.step()
                if self.ema_model is not None:
                    self.ema_model.update_parameters(self.model)
                advance()
                step = self._step(batch.step + 1, release)
                for callback in self.callbacks:
                    callback(self, step)
                try:
                    yield step
                except GeneratorExit:  # the loop was left
                    finish_trackers(self.callbacks, self, step)
                    raise
                if self._stopped:
                    finish_trackers(self.callbacks, self, step)

    def _step(self, number: int, release: PrivateGradient) -> Step:
        epoch, place = divmod(number - 1, self.steps_per_epoch)
        return Step(number, self.steps, release, epoch + 1, place + 1 == self.steps_per_epoch)

    def stop(self) -> None:
        """Ends the iteration after the current step, as if the plan ended there.

        The run saves itself if it has a checkpoint, and returns to the data set's ledger what it has
        reserved. Iterating again continues with the remaining steps.
        """
        self._stopped = True

    def batches(self) -> Iterator[Batch]:
        """Yields the logical batches of the remaining steps, for a training loop of your own.

        With `checkpoint_every` the run saves itself before the first batch, every `checkpoint_every` steps,
        and after the last batch.
        """
        every, first = self._files.every, self.steps_done
        self._stopped = False
        for batch in self.loader.batches(first, self.steps):
            if batch.step >= self.steps:  # the data set's ledger pays for fewer
                break
            if every is not None and (batch.step == first or batch.step % every == 0):
                self._save_again()
            yield batch
            if self._stopped:
                break
        if every is not None:
            self._save_again()
        self.close()

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, which `adamas.load` continues; see `adamas.run.checkpoint`.

        From then on each release is also written to a journal next to the file, so that the spending is known
        after a crash. An older checkpoint of this name is replaced once the new one is complete. A run may
        be saved in several files: each has a journal, which costs one more write per step until the file
        is deleted.
        """
        with self._between_releases("run.save"):
            automatic = self._files.every is not None
            checkpoints = self._files.at(path)
            state = self.state_dict()
            self._files.forget_unneeded()
            try:
                write_once(self.ranks, lambda: self._write(checkpoints, state))
            except BaseException:
                if checkpoints.journal.begun:  # the file may be there, and must know what follows
                    self._files.keep(checkpoints, first=False)
                raise
            self._files.keep(checkpoints, first=not automatic)  # automatic ones stay where they are

    def _write(self, checkpoints: Checkpoints, state: dict[str, Any]) -> None:
        self._files.announce(checkpoints.path)
        checkpoints.save(state)

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Where the run was last saved, or saves itself; None for nowhere."""
        return self._files.main

    @contextmanager
    def _between_releases(self, doing: str) -> Iterator[None]:
        """Keeps other threads out, and refuses to start during a release, as in a signal handler."""
        with self._lock:
            if self._releasing:
                raise RuntimeError(
                    f"Expected {doing} between two releases, got it during one, which is charged in one "
                    "place and not yet in another. In a signal handler set a variable, and check it after "
                    "the step."
                )
            yield

    def recover(self, parts: Sequence[Sequence[Release]], checkpoints: Checkpoints) -> None:
        """Takes over releases that the run made after it was saved; `adamas.load` calls this.

        Args:
            parts: The releases of each process that died.
            checkpoints: The file with the journal of these releases, which continues.
        """
        main = self._files.main
        if main is not None and main.path == checkpoints.path:
            checkpoints.every = main.every
        self._files.keep(checkpoints, first=main is None)
        try:
            self._spending.recover(parts, repeatable=self.noise.seed.given is not None)
            write_once(self.ranks, lambda: self._files.adopt(checkpoints))
        except BaseException:
            checkpoints.journal.abandon()  # nothing may be released that a sibling does not know
            raise

    def _replaced(
        self,
        *,
        noise: Noise | None = None,
        loader: Loader | None = None,
        engine: str | EngineFactory | None = None,
        loss: Loss | None = None,
    ) -> Self:
        """Returns a rehearsal of this run with some of its parts replaced, for checks and audits.

        A rehearsal spends nothing: it has a ledger of its own, which no budget limits, and knows neither
        checkpoint nor data ledger. So nobody may see its releases. It shares model, rule and all other parts
        with this run, and training it trains both. Rehearsals of a rehearsal share its ledger.

        Args:
            noise: Another noise; None keeps that of the run, as for the others.
            loader: Another loader, whose batches the rehearsal accepts.
            engine: Another engine: a name in `adamas.engines.ENGINES`, or what makes engines.
            loss: Another loss.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.progress, other._releasing, other.callbacks = False, False, ()
        if self._spending.enforced:
            other._spending = self._spending.rehearsal()
        other._files = SavedFiles(None, other._spending.use_journals)
        other.noise, other.loader = noise or self.noise, loader or self.loader
        other.loss = loss or self.loss
        if isinstance(engine, str):
            other.engine, other.make_engine = engine, ENGINES[engine]
        elif engine is not None:
            other.engine, other.make_engine = _REPLACED, engine
        return other

    def privatize(self, batch: Batch, *, absolute: bool = False) -> PrivateGradient:
        """Releases the private gradient of a batch, and records it.

        A second release on the same batch joins the event of the first. A release that would exceed the
        budget is refused before anything is computed. With `absolute` the magnitudes of the summed gradient
        are released, at the same price: see `adamas.privatize.privatize`. If the forward changes the model's
        state, nothing is released: see `adamas._guards.state.Snapshot`. In a data-parallel run all ranks
        call this, and if it raises on one, it raises on all.
        """
        with self._between_releases("run.privatize"), together(self.ranks):
            self._releasing = True
            try:
                return self._privatize(batch, absolute)
            finally:
                self._releasing = False
                self._draws = max(self._draws, self.noise.draws)

    def _privatize(self, batch: Batch, absolute: bool) -> PrivateGradient:
        if not isinstance(batch, Batch) or batch.loader is not self.loader:
            raise TypeError(
                "Expected a batch of run.batches(): how other data was sampled is unknown, so its release "
                f"cannot be accounted for. Got {type(batch).__name__}."
            )
        if batch.step < self.steps_done - 1:
            raise RuntimeError(
                f"Expected the current batch of run.batches(), got that of step {batch.step + 1} after a "
                f"release on step {self.steps_done}."
            )
        check_modules(self.model)
        check_parameters(self.model, self.rule)  # what trains may have changed since the run was made
        self._rule_state.check()
        if self._spending.enforced:
            self._check_untouched(batch)
        self._spending.check(batch.step)
        self._last_release = None  # its memory is free for the next one
        multipliers = [self.noise_multiplier, 0.0] if self.raw and not absolute else [self.noise_multiplier]
        with (
            self._watch.over(
                self.model, self.loss, turn=batch.step, reads_values=self.engine in READS_VALUES
            ) as state,
            model_randomness(self.noise.seed, batch.step, *rank_place(self.loader.rank)),
        ):
            release = privatize(
                self._engines(batch, state),
                self.geometry(),
                noise_multiplier=self.noise_multiplier,
                expected_batch_size=self.loader.sampler.batch_size,
                noise=self.noise,
                charge=lambda identify: self._spending.charge(
                    batch.step, multipliers, identify, draw=self.noise.draws
                ),
                absolute=absolute,
                raw=None if self._raw_moments is None or absolute else self._raw_moments.add,
                ranks=self.ranks,
                place=f"step {batch.step + 1}" + (" with absolute=True" if absolute else ""),
            )
        self._last_release = release
        return release

    def _check_untouched(self, batch: Batch) -> None:
        """Raises unless sampling and noise are those that the ledger counts on."""
        if any(one.sampler is not self._spending.sampler for one in (self.loader, batch)):
            raise RuntimeError(
                "Expected run.loader.sampler to be the sampler of the run, whose rate its ledger counts, but "
                "it was replaced. Make another run with make_private."
            )
        if self.noise.draws < self._draws and self.noise.seed.same(self._spending.sampler.seed):
            raise RuntimeError(
                f"Expected run.noise after {self._draws} draws, found it after {self.noise.draws}: it would "
                "draw the same noise for other sums, which shows how they differ. Make another run with "
                "make_private, and another seed."
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that a resumed run needs, and nothing un-noised: no moments of `raw=True`.

        A given seed is included, so that the resumed run is bit-equal. A secret seed is not: the resumed run
        draws a new one.
        """
        with self._between_releases("run.state_dict"):
            return state_of(self, self._made_with, self._spending.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the state of a run that was made with the same settings; this run must be fresh.

        Continue a state once: two runs that continue it both spend from there on, and with a given seed they
        share their noise. In a data-parallel run all ranks load the same state, which may come from another
        number of ranks.
        """
        with together(self.ranks):
            if not self._spending.is_fresh or self.noise.draws:
                raise RuntimeError(
                    "Expected a run that has released nothing: going back would draw the same noise again "
                    "and forget what was released. Make a new run with make_private and load the state into "
                    "it."
                )
            check_resumable(self.callbacks)
            check_state(self, self._made_with, state)
            with self._rule_state.accepted():
                restore(self, state)
            self._draws = self.noise.draws
            self._spending.load_state_dict(state["spending"])
            self._check_ranks("load_state_dict")

    def _check_ranks(self, doing: str) -> None:
        """Raises on all ranks unless they have the same settings, model and rule."""
        if self.ranks is not None:
            facts = settings_of(self, self._made_with) | training_facts(self.model, self.rule)
            facts |= {"steps_done": self.steps_done, "accountant": self.accountant}
            facts |= {"scheduler": type(self.scheduler).__name__, "ema": self.ema_model is None}
            self.ranks.roll_call(doing, facts)

    def _engines(self, batch: Batch, state: Snapshot) -> Iterator[tuple[Engine, int]]:
        loss = self.loss if self.engine == FAST else state.between(self.loss)
        for place, (data, padding, sizes) in enumerate(batch.micro_batches()):
            if place:
                state.check()
                state.put_back()
            self._padding.check(self.model, self.loss, data, sizes)
            yield self.make_engine(self.model, loss, data), padding
        state.check()  # after the last look at the data, and before anything is recorded

    def _save_again(self) -> None:
        assert self._files.main is not None
        self.save(self._files.main.path)
