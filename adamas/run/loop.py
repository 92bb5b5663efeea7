"""A private run: the loop that samples, clips, adds noise, records and updates."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from dp_accounting import NeighboringRelation
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from adamas import diagnostics
from adamas._guards.collate import Sizes, padded_and_alone, padding_of
from adamas._guards.state import Snapshot, Watch, unchanged
from adamas._progress import progress_bar
from adamas._streams import Seed, torch_randomness
from adamas._words import rounded_up
from adamas.accounting import Spending
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.journal import Release
from adamas.accounting.ledger import Ledger
from adamas.distributed import Ranks, rank_place, together, training_facts, write_once
from adamas.engines import ENGINES, FAST, READS_VALUES, Bookkeeping, Engine, Loss, trainable_parameters
from adamas.engines.explain import Explanation
from adamas.engines.probes import PADDED_EXAMPLES, compare_padded, unchanged_generator
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry
from adamas.loading import Batch, Loader
from adamas.noise import Noise
from adamas.privatize import PrivateGradient, privatize
from adamas.rules.base import Rule
from adamas.run.checkpoint import Checkpoints
from adamas.run.preconditions import check_modules, check_parameters
from adamas.run.rule_state import RuleState
from adamas.sampling import Shuffled, TruncatedPoisson

_STATE_VERSION = 5  # 4 had no account in the data set's ledger

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "adding or removing one record",
    NeighboringRelation.REPLACE_ONE: "replacing one record",
    NeighboringRelation.REPLACE_SPECIAL: "replacing one record by one without influence",
}


@dataclass(frozen=True)
class Step:
    """One finished logical step.

    Attributes:
        number: 1, 2, ...
        total: Steps of the whole run.
        release: The private gradient of the step, which may be shown to anybody.
    """

    number: int
    total: int
    release: PrivateGradient


class PrivateRun:
    """Differentially private training in progress; `adamas.make_private` makes it.

    Iterating trains: each turn is one logical step. Leaving the loop and iterating again continues where
    it stopped; after `steps` steps there is nothing left to iterate over.

    Attributes:
        model: The user's model.
        clip_norm: Factor of the rule's geometry.
        engine: The name of the engine.
        checkpoints: Where the run was last saved or is saved by itself; None for nowhere.
        ema_model: The moving average of the weights, a module to evaluate; None if not asked for.
        ranks: The processes of a data-parallel run; None for a run in one process.
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
    ) -> None:
        self.model, self.loss = model, loss
        self._rule = rule
        self.loader, self.noise, self.engine = loader, noise, engine
        self.clip_norm = clip_norm
        self.checkpoints: Checkpoints | None = None
        self.scheduler, self.ema_model, self.progress = scheduler, ema_model, progress
        self._spending = spending
        self._made_with = spending.plan
        self._copies: list[Checkpoints] = []  # other files by hand, which know what follows, too
        self._lock, self._releasing = threading.RLock(), False
        self._draws = 0  # of the noise: no less from now on
        self._raw_moments = diagnostics.RawMoments(rule) if raw else None
        self._watch = Watch()
        self._padding = 0  # by how many places rows were padded whose losses were compared
        self.ranks = ranks
        self._check_ranks("make_private")
        if ranks is not None:
            ranks.share_seed(loader.sampler.seed)
            spending.share_account()
        self._rule_state = RuleState.of(rule)

    def __copy__(self) -> NoReturn:
        raise TypeError(
            "A run cannot be copied: both copies would spend, and know of their own releases only. Make "
            "another run with make_private, or save this one and load the file."
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    def __len__(self) -> int:
        return self.steps - self.steps_done

    def __iter__(self) -> Iterator[Step]:
        with progress_bar(
            self.progress, self.steps_done, self.steps, self.epsilon, private=self.private
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
                yield Step(batch.step + 1, self.steps, release)

    def batches(self) -> Iterator[Batch]:
        """The logical batches of the steps that are left, for a loop of one's own.

        With `checkpoint_every` the run is saved before the first of them, when the next one is asked for
        after so many steps, and after the last one.
        """
        every = self.checkpoints.every if self.checkpoints is not None else None
        first = self.steps_done
        for batch in self.loader.batches(first, self.steps):
            if batch.step >= self.steps:  # the data set's ledger pays for fewer
                break
            if every is not None and (batch.step == first or batch.step % every == 0):
                self._save_again()
            yield batch
        if every is not None:
            self._save_again()
        self.close()

    def close(self) -> None:
        """Gives back what the run has reserved in the data set's ledger and has not released.

        This happens by itself after the last step. A run that stops early and is not closed has spent all of
        its reservation, because nobody knows better.
        """
        self._spending.close()

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint, which `adamas.load` continues; see `adamas.run.checkpoint`.

        From then on each release is also written to a journal beside it, so that after a crash it is known
        what was spent. An older checkpoint of this name is replaced when the new one is complete. Each of
        several files knows what follows, at the price of one more write per step, until it is deleted.
        """
        with self._between_releases("run.save"):
            every = self.checkpoints.every if self.checkpoints is not None else None
            checkpoints = Checkpoints(path, every)
            checkpoints = next((one for one in self._files() if one.path == checkpoints.path), checkpoints)
            state = self.state_dict()
            self._copies = [one for one in self._copies if one.needed]
            try:
                write_once(self.ranks, lambda: checkpoints.save(state))
            except BaseException:
                if checkpoints.journal.begun:  # the file may be there, and must know what follows
                    self._keep(checkpoints, first=False)
                raise
            # Automatic ones stay where they are.
            self._keep(checkpoints, first=every is None or self.checkpoints is None)

    def _files(self) -> list[Checkpoints]:
        return [*([] if self.checkpoints is None else [self.checkpoints]), *self._copies]

    def _keep(self, checkpoints: Checkpoints, *, first: bool) -> None:
        """Lets a file know what follows, beside the others; the first one stands for the run."""
        if self.checkpoints is not None and self.checkpoints.path == checkpoints.path:
            self.checkpoints = checkpoints
        else:
            self._copies = [one for one in self._copies if one.path != checkpoints.path]
            if first:
                self._copies, self.checkpoints = self._files(), checkpoints
            else:
                self._copies.append(checkpoints)
        self._spending.use_journals([one.journal for one in self._files()])

    @contextmanager
    def _between_releases(self, doing: str) -> Iterator[None]:
        """Keeps other threads out, and refuses to begin within a release, as in a signal handler."""
        with self._lock:
            if self._releasing:
                raise RuntimeError(
                    f"Expected {doing} between two releases, got it within one, which is charged in "
                    "one place and not yet in another. In the handler of a signal set a variable, and look "
                    "at it after the step."
                )
            yield

    def extend(
        self, *, steps: int, epsilon: float | None = None, noise_multiplier: float | None = None
    ) -> None:
        """Gives the run more steps, and an explicit new budget.

        Args:
            steps: How many more than those that were done.
            epsilon: The new budget for all that the run has released and will release. Noise for the new
                steps is calibrated to what is left of it.
            noise_multiplier: Or the noise of the new steps; then there is no budget any more.

        Raises:
            ValueError: If the budget is spent already.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.Adam(model.parameters()), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, steps=5, epsilon=2.0, delta=1e-3, accountant="rdp")
            >>> for _ in run: pass
            >>> run.extend(steps=5, epsilon=3.0)
            >>> for _ in run: pass
            >>> run.steps_done, 2.9 < run.epsilon() <= 3.0
            (10, True)
        """
        self._spending.extend(steps=steps, epsilon=epsilon, noise_multiplier=noise_multiplier)

    def recover(self, parts: Sequence[Sequence[Release]], checkpoints: Checkpoints) -> None:
        """Takes over releases that the run made after it was saved; `adamas.load` calls it.

        Args:
            parts: The releases of each process that died.
            checkpoints: The file, whose journal has them and goes on.
        """
        if self.checkpoints is not None and self.checkpoints.path == checkpoints.path:
            checkpoints.every = self.checkpoints.every
        self._keep(checkpoints, first=self.checkpoints is None)
        self._spending.recover(parts, repeatable=self.noise.seed.given is not None)

    def _rehearse(self) -> None:
        """Lets a fresh run release what nobody will see: no budget, no file and no ledger knows of it."""
        self._spending, self.checkpoints = self._spending.rehearsal(), None

    def privatize(self, batch: Batch, *, absolute: bool = False) -> PrivateGradient:
        """Releases the private gradient of a batch, and records it.

        A second release on the same batch joins the first one's event. If the run has a budget, a
        release that would exceed it is refused before anything is computed. With `absolute` the magnitudes
        of the summed gradient are released, at the same price: see `adamas.privatize.privatize`.
        If the forward changes the model's state, nothing is released: see `adamas._guards.state.Snapshot`.
        In a data-parallel run all ranks call it, and if it raises on one, it raises on all.
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
                "Expected a batch of run.batches(): for data from elsewhere nobody knows how it was "
                f"sampled, so its release cannot be accounted for. Got {type(batch).__name__}."
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
        multipliers = [self.noise_multiplier, 0.0] if self.raw and not absolute else [self.noise_multiplier]
        with (
            self._watch.over(
                self.model, self.loss, turn=batch.step, reads_values=self.engine in READS_VALUES
            ) as state,
            model_randomness(self.noise.seed, batch.step, *rank_place(self.loader.rank)),
        ):
            release = privatize(
                self._engines(batch, state),
                self._geometry(),
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
        return release

    def _check_untouched(self, batch: Batch) -> None:
        """Raises if sampling or noise are not those that the ledger counts on."""
        if any(one.sampler is not self._spending.sampler for one in (self.loader, batch)):
            raise RuntimeError(
                "Expected run.loader.sampler to be the sampler of the run, whose rate its ledger counts: "
                "another one was put in its place. Make another run with make_private."
            )
        if self.noise.draws < self._draws and self.noise.seed.same(self._spending.sampler.seed):
            raise RuntimeError(
                f"Expected run.noise after {self._draws} draws, found it after {self.noise.draws}: it would "
                "draw the same noise for other sums, which shows how they differ. Make another run with "
                "make_private, and another seed."
            )

    def explain(self) -> Explanation:
        """Which function uses each parameter, how its norms are taken, and its share of time and memory.

        Tries the first examples of the data set; nothing is recorded or changed. Sizes and times follow the
        shapes of these examples, such as the length of the longest text: for whoever may see the data.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.Adam(model.parameters()), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, epochs=1, noise_multiplier=1.0, delta=1e-3)
            >>> run.explain().costs[0].formula
            '|input| |output gradient|'
        """
        sampler = self.loader.sampler
        examples = min(sampler.dataset_size, self.loader.micro_batch_size or sampler.batch_size)
        rows = np.arange(examples)
        with unchanged(self.model, self.loss), model_randomness(self.noise.seed, self.steps_done):
            data = self.loader.check(self.loader.fetch(rows), rows)
            try:
                Bookkeeping(self.model, self.loss, data).norms(self._geometry())  # probes, warms up
                explanation = Bookkeeping(self.model, self.loss, data).explain(self._geometry())
            except UnsupportedError as error:
                return Explanation(self.engine, str(error), examples, 0.0, [])
        return replace(explanation, engine=self.engine)

    def diagnostics(self, *, raw: bool = False, histograms: bool = False) -> dict[str, Any]:
        """What the rule did, from its own state: free of privacy cost, as plain numbers.

        Args:
            raw: Add the comparison with moments without noise, under "raw": for a run that was made with
                `make_private(..., raw=True)`, which is not private.
            histograms: Add distributions over all coordinates.

        Returns:
            "step", "private", "overall" and "layers", as `adamas.diagnostics.diagnose` explains them, with
            the centre measured in the run's clipping; "histograms" as `adamas.diagnostics.histograms`.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.AdamBC(model.parameters()), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, steps=3, noise_multiplier=100.0, delta=1e-3)
            >>> for _ in run: pass
            >>> seen = run.diagnostics()
            >>> seen["private"], seen["overall"]["on_floor"], sorted(seen["layers"])
            (True, 1.0, ['bias', 'weight'])
        """
        if raw and self._raw_moments is None:
            raise ValueError(
                "Expected raw=False: this run keeps no moments without noise. Make it with "
                "make_private(..., raw=True); it is then not private, and its epsilon is infinite."
            )
        result: dict[str, Any] = {"step": self.steps_done, "private": self.private}
        seen = diagnostics.diagnose(self.rule, self.model, geometry=self._geometry())
        result |= {"overall": seen["overall"], "layers": seen["layers"]}
        if histograms:
            result["histograms"] = diagnostics.histograms(self.rule)
        if raw and self._raw_moments is not None:
            result["raw"] = self._raw_moments.compare(self.model, histograms=histograms)
        return result

    @property
    def steps(self) -> int:
        """Steps of the whole run; `extend` changes them."""
        return self._spending.plan.steps

    @property
    def steps_done(self) -> int:
        """Steps whose release was made."""
        return self._spending.steps_done

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise on a sum of sensitivity 1; `extend` changes it."""
        return self._spending.plan.noise_multiplier

    @property
    def budget(self) -> float | None:
        """The epsilon that may be spent at most; None for no limit. `extend` changes it."""
        return self._spending.plan.budget

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self._spending.delta

    @property
    def accountant(self) -> str:
        """The accountant that epsilon comes from."""
        return self._spending.accountant

    @property
    def ledger(self) -> Ledger:
        """What was released; a release elsewhere on the same data is recorded here, too."""
        return self._spending.ledger

    @property
    def data_ledger(self) -> DataLedger | None:
        """What all runs on the data set spend together; None for no such ledger."""
        return self._spending.data_ledger

    @property
    def rule(self) -> torch.optim.Optimizer:
        """The optimizer. Another one over the model's trainable parameters may take its place."""
        return self._rule

    @rule.setter
    def rule(self, rule: torch.optim.Optimizer) -> None:
        check_parameters(self.model, rule)
        if self.scheduler is not None and self.scheduler.optimizer is not rule:
            raise ValueError(
                "Expected run.scheduler to belong to the new rule. Set run.scheduler to None first, and to a "
                "scheduler of the new rule afterwards."
            )
        if rule is not self._rule and self._raw_moments is not None:
            self._raw_moments = diagnostics.RawMoments(rule)
        self._rule = rule
        self._rule_state = RuleState.of(rule)

    @property
    def raw(self) -> bool:
        """Whether moments without noise are kept, which makes the run not private."""
        return self._raw_moments is not None

    @property
    def private(self) -> bool:
        """False for a run that releases something without noise, whose epsilon is infinite."""
        return self.noise_multiplier > 0 and not self.raw

    def epsilon(self, accountant: str | None = None) -> float:
        """The epsilon spent so far, at the run's delta."""
        return self._spending.epsilon(accountant)

    def privacy_statement(self) -> str:
        """The guarantee in words, for a report."""
        sampler = self.loader.sampler
        if not self.private:
            return NOT_PRIVATE + (RAW_REASON if self.raw else "its noise multiplier is 0.")
        words = (
            f"The {self.steps_done} steps so far are ({rounded_up(self.epsilon())}, {self.delta:g})-"
            f"differentially private under {_RELATIONS[self.ledger.relation]}, with "
            f"{type(sampler).__name__} sampling of {sampler.batch_size} of {sampler.dataset_size} records on "
            "average, noise multiplier "
            f"{self.noise_multiplier:g} and accountant {self.accountant}. {self.noise.words}"
        )
        if self.noise.seed.given is not None:
            words += " " + SEED_WARNING
        return words

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, and nothing un-noised: no moments of `raw=True`.

        A given seed is among it, so that the resumed run is bit-equal; a secret seed is not, so that the
        resumed run draws a new one.
        """
        with self._between_releases("run.state_dict"):
            return {
                "version": _STATE_VERSION,
                "settings": self._settings(),
                "spending": self._spending.state_dict(),
                "model": self.model.state_dict(),
                "rule": self.rule.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "ema": None if self.ema_model is None else self.ema_model.state_dict(),
                "noise": self.noise.state_dict(),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues a saved run, which must have had the same settings, in a run that is still fresh.

        Two runs that continue one state both spend from that point on, and with a given seed they also
        share their noise: continue a state once. In a data-parallel run all ranks load the same state; it may
        come from another number of ranks.
        """
        with together(self.ranks):
            self._load_state_dict(state)
            self._check_ranks("load_state_dict")

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        if self._spending.complete().entries or self.noise.draws:
            raise RuntimeError(
                "Expected a run that has released nothing: going back would draw the same noise again and "
                "forget what was released. Make a new run with make_private and load the state into it."
            )
        if state["version"] != _STATE_VERSION:
            raise ValueError(f"Expected a state of version {_STATE_VERSION}, got {state['version']!r}.")
        saved = state["settings"]
        for name, mine in self._settings().items():
            if saved.get(name) != mine:
                raise ValueError(
                    f"Expected a state with {name}={mine!r} as in this run, got {saved.get(name)!r}."
                )
        for name, part in (("scheduler", self.scheduler), ("ema", self.ema_model)):
            if (state[name] is None) != (part is None):
                raise ValueError(f"Expected {name}= to be given to both the saved run and this one.")
        _check_same_tensors("model", state["model"], self.model.state_dict())
        _check_same_options(state["rule"]["param_groups"], self.rule.param_groups)
        if self.ema_model is not None:
            _check_same_tensors("ema", state["ema"], self.ema_model.state_dict())
        sampler = self.loader.sampler
        within_epoch = state["spending"]["steps_done"] % sampler.steps_per_epoch()
        if isinstance(sampler, Shuffled) and sampler.seed.given is None and within_epoch:
            raise ValueError(
                "Expected seed= for a shuffled run that resumes within an epoch: without it the rest of "
                "the permutation is unknown, and records would take part twice."
            )
        self.model.load_state_dict(state["model"])
        with self._rule_state.accepted():
            self.rule.load_state_dict(state["rule"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.ema_model is not None:
            self.ema_model.load_state_dict(state["ema"])
        self.noise.load_state_dict(state["noise"])
        self._draws = self.noise.draws
        self._spending.load_state_dict(state["spending"])

    def _settings(self) -> dict[str, Any]:
        """What must agree between a saved run and the one that continues it."""
        sampler = self.loader.sampler
        return {
            "sampling": type(sampler).__name__,
            "dataset_size": sampler.dataset_size,
            "batch_size": sampler.batch_size,
            "max_batch_size": sampler.max_batch_size if isinstance(sampler, TruncatedPoisson) else None,
            "clip_norm": self.clip_norm,
            "delta": self.delta,
            "rule": type(self.rule).__name__,
            "seed": self.noise.seed.given,
            "noise": self.noise.name,
            "raw": self.raw,
            **asdict(self._made_with),
        }

    def _check_ranks(self, doing: str) -> None:
        """Raises on all ranks unless they have the same settings, model and rule."""
        if self.ranks is not None:
            facts = self._settings() | training_facts(self.model, self.rule)
            facts |= {"steps_done": self.steps_done, "accountant": self.accountant}
            facts |= {"scheduler": type(self.scheduler).__name__, "ema": self.ema_model is None}
            self.ranks.roll_call(doing, facts)

    def _geometry(self) -> Geometry:
        if isinstance(self.rule, Rule):
            return self.rule.geometry().scaled(self.clip_norm)
        return Geometry.ball(trainable_parameters(self.model).values(), self.clip_norm)

    def _engines(self, batch: Batch, state: Snapshot) -> Iterator[tuple[Engine, int]]:
        loss = self.loss if self.engine == FAST else state.between(self.loss)
        for place, (data, padding, sizes) in enumerate(batch.micro_batches()):
            if place:
                state.check()
                state.put_back()
            self._compare_padded(data, sizes)
            yield ENGINES[self.engine](self.model, loss, data), padding
        state.check()  # after the last look at the data, and before anything is recorded

    def _compare_padded(self, data: Any, sizes: Sizes) -> None:
        """Sees that padding does not matter: on the first batch that has some, and at twice as much."""
        far = max(padding_of(data, sizes), default=0)
        if far < 2 * self._padding or not far:
            return
        rows = padded_and_alone(data, sizes, PADDED_EXAMPLES)
        if rows is not None:
            with unchanged(self.model, self.loss), unchanged_generator():
                compare_padded(self.model, self.loss, *rows)
        self._padding = far

    def _save_again(self) -> None:
        assert self.checkpoints is not None
        self.save(self.checkpoints.path)


def _check_same_options(saved: Sequence[Mapping[str, Any]], mine: Sequence[Mapping[str, Any]]) -> None:
    """Raises unless both rules have the same hyperparameters; learning rates may be changed on the way."""
    if len(saved) != len(mine):
        raise ValueError(
            f"Expected the state of a rule with {len(mine)} groups of parameters, got {len(saved)}."
        )
    for theirs, ours in zip(saved, mine, strict=True):
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                "Expected the state of a rule whose groups have as many parameters as this one's."
            )
        for name in sorted({*theirs, *ours} - {"params", "lr", "initial_lr"}):
            a, b = theirs.get(name), ours.get(name)
            if (list(a) if isinstance(a, tuple) else a) != (list(b) if isinstance(b, tuple) else b):
                raise ValueError(f"Expected the state of a rule with {name}={b!r}, got {a!r}.")


def _check_same_tensors(name: str, saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raises unless both have tensors of the same names, shapes and types."""
    for key in [*mine, *saved]:
        a, b = saved.get(key), mine.get(key)
        if a is None or b is None:
            raise ValueError(f"Expected the state of this {name}, but only one of them has {key}.")
        if isinstance(a, Tensor) and (a.shape != b.shape or a.dtype != b.dtype):
            raise ValueError(
                f"Expected the state of this {name}, with {key} of shape {tuple(b.shape)} and {b.dtype}, got "
                f"{tuple(a.shape)} and {a.dtype}."
            )


NOT_PRIVATE = "The run is NOT PRIVATE, its epsilon is infinite: "
RAW_REASON = (
    "raw=True keeps moments of the gradients before the noise, so each step is recorded as a release without "
    "noise, too."
)

SEED_WARNING = (
    "The run had a given seed: whoever knows it can remove the noise, so keep it as secret as the data, and "
    "use it for no other run on them."
)


def model_randomness(seed: Seed, step: int, *place: int) -> AbstractContextManager[None]:
    """Dropout as a function of seed and step; torch's global generator stays as it is."""
    return torch_randomness(int(seed.words("model", step, *place, count=1)[0]))
