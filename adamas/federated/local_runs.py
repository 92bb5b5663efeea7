"""Makes the private runs of a client, one per round: the first one probes, the others reuse the outcome.

The probes of `make_private` try model, loss and data on a few examples, to choose an engine and to refuse
early what cannot be trained. Their outcome depends on the structure of the model, not on the parameters that
a server sends. So a client probes when it first trains, and again if anything that the probes looked at has
changed, or if a run was refused. What a release relies on is checked in each step of each run: the engine
proves that examples are separate, and the run checks modules, parameters, the state of the model, and
padding.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from adamas.engines import Loss
from adamas.loading import dataset_length
from adamas.rules.base import Rule
from adamas.run.calibration import calibrated
from adamas.run.loop import PrivateRun
from adamas.run.make import made, make_private
from adamas.run.options import RunOptions
from adamas.run.probing import probed_before
from adamas.run.validation import validated

_OBJECTS = ("model", "dataset", "loss")


@dataclass(frozen=True)
class Probe:
    """The outcome of the probes, and what they looked at.

    Attributes:
        engine: The name of the engine that accepted the model.
        objects: The model, data set and loss.
        facts: The structure of the model, the number of examples, and all options except the seed.
    """

    engine: str
    objects: tuple[Any, ...]
    facts: Hashable


@dataclass
class LocalRuns:
    """A model, its data and the options of its private runs.

    Attributes:
        model: The architecture. Its parameters are overwritten by what the server sends.
        dataset: The client's own examples.
        loss: A function of model and batch that returns one loss per example.
        batch_size: Expected number of examples per step.
        noise_multiplier: Noise multiplier of each release; 0 if the server adds the noise.
        clip_norm: Clipping norm of an example's gradient; infinite if the server clips.
        delta: The delta of the guarantee.
        seed: Seed of this round's sampling and noise; None draws a secret one.
        engine: A name in `adamas.engines.ENGINES`, or "auto".
        micro_batch_size: Maximum examples processed at once.
        allow_large_delta: See `make_private`.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Loss
    batch_size: int
    noise_multiplier: float
    clip_norm: float
    delta: float
    seed: int | None = None
    engine: str = "auto"
    micro_batch_size: int | None = None
    allow_large_delta: bool = False
    _probe: Probe | None = field(default=None, init=False, repr=False, compare=False)

    def make_run(self, rule: Rule, steps: int) -> PrivateRun:
        """Makes a run of `steps` private steps. It probes unless the probe of an earlier run still holds."""
        objects, facts = self._objects(), self._facts()
        known = self._probe
        if (
            known is not None
            and all(mine is other for mine, other in zip(known.objects, objects, strict=True))
            and known.facts == facts
        ):
            return self._run_without_probes(rule, steps, known.engine)
        run = self._run_with_probes(rule, steps)
        self._probe = Probe(run.engine, objects, facts)
        return run

    def forget_probe(self) -> None:
        """Makes the next run probe again."""
        self._probe = None

    def _run_with_probes(self, rule: Rule, steps: int) -> PrivateRun:
        return make_private(self.model, rule, self.dataset, self.loss, **self._options(steps))

    def _run_without_probes(self, rule: Rule, steps: int, engine: str) -> PrivateRun:
        """Makes the run that `make_private` would make, with the engine that it chose before."""
        options = RunOptions(**self._options(steps))
        arguments = validated(self.model, rule, self.dataset, self.loss, options)
        return made(arguments, probed_before(arguments, engine), calibrated(arguments))

    def _options(self, steps: int) -> dict[str, Any]:
        """Returns the options of a run: every field of a client that is one, and what all clients share."""
        own = {one.name for one in fields(LocalRuns)} & {one.name for one in fields(RunOptions)}
        return {name: getattr(self, name) for name in own} | {"steps": steps, "progress": False}

    def _objects(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _OBJECTS)

    def _facts(self) -> Hashable:
        names = [one.name for one in fields(LocalRuns) if one.name not in (*_OBJECTS, "seed", "_probe")]
        options = tuple(getattr(self, name) for name in names)
        return _structure(self.model), dataset_length(self.dataset), options


def _structure(model: nn.Module) -> Hashable:
    """Returns the modules with their modes, and the tensors without their values."""
    modules = tuple((name, type(module), module.training) for name, module in model.named_modules())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return modules, tuple((name, x.shape, x.dtype, x.device, x.requires_grad) for name, x in tensors)
