"""Makes the private runs of a client, one per round: the first one probes, the others reuse the outcome.

The probes of `make_private` try model, loss and data on a few examples, to choose an engine and to refuse
early what cannot be trained. Their outcome depends on the structure of the model, not on the parameters that
a server sends. So a client probes when it first trains, and again if anything that the probes looked at has
changed, or if a run was refused. What a release relies on is checked in each step of each run: the engine
proves that examples are separate, and the run checks modules, parameters, the state of the model, and
padding.
"""

from dataclasses import dataclass, field
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

_OWN = ("batch_size", "noise_multiplier", "clip_norm", "delta")


@dataclass(frozen=True)
class Probe:
    """The outcome of the probes, without the model and the examples that they tried.

    Attributes:
        engine: The name of the engine that accepted the model.
        loss: The loss.
        facts: The structure of the model, the number of examples, and all options except the seed.
    """

    engine: str
    loss: Loss
    facts: tuple[Any, ...]


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
        options: Other options of `make_private` by name, such as `engine`.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Loss
    batch_size: int
    noise_multiplier: float
    clip_norm: float
    delta: float
    seed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    _probe: Probe | None = field(default=None, init=False, repr=False, compare=False)
    _probed: tuple[Any, ...] = field(default=(), init=False, repr=False, compare=False)

    @property
    def probe(self) -> Probe | None:
        """The outcome of the last probes; None if the next run probes in any case."""
        return self._probe

    def adopt_probe(self, probe: Probe) -> None:
        """Takes over the probe of an earlier client that was made of the same settings and data.

        The next run still probes if structure, loss, number of examples or options differ.
        """
        self._probe, self._probed = probe, (self.model, self.dataset)

    def forget_probe(self) -> None:
        """Makes the next run probe again."""
        self._probe = None

    def make_run(self, rule: Rule, steps: int) -> PrivateRun:
        """Makes a run of `steps` private steps. It probes unless the probe of an earlier run still holds."""
        facts = self._facts()
        if self._probe is not None and self._still_holds(self._probe, facts):
            return self._run_without_probes(rule, steps, self._probe.engine)
        run = self._run_with_probes(rule, steps)
        self.adopt_probe(Probe(run.engine, self.loss, facts))
        return run

    def _still_holds(self, probe: Probe, facts: tuple[Any, ...]) -> bool:
        model, dataset = self._probed
        same = model is self.model and dataset is self.dataset and probe.loss is self.loss
        return same and probe.facts == facts

    def _run_with_probes(self, rule: Rule, steps: int) -> PrivateRun:
        return make_private(self.model, rule, self.dataset, self.loss, **self._options(steps))

    def _run_without_probes(self, rule: Rule, steps: int, engine: str) -> PrivateRun:
        """Makes the run that `make_private` would make, with the engine that it chose before."""
        options = RunOptions(**self._options(steps))
        arguments = validated(self.model, rule, self.dataset, self.loss, options)
        return made(arguments, probed_before(arguments, engine), calibrated(arguments))

    def _options(self, steps: int) -> dict[str, Any]:
        """Returns the options of a run."""
        return dict(**self._own(), **self.options, seed=self.seed, steps=steps, progress=False)

    def _own(self) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in ("batch_size", "noise_multiplier", "clip_norm", "delta")
        }

    def _facts(self) -> tuple[Any, ...]:
        return _structure(self.model), dataset_length(self.dataset), self._own(), dict(self.options)


def _structure(model: nn.Module) -> tuple[Any, ...]:
    """Returns the modules with their modes, and the tensors without their values."""
    modules = tuple((name, type(module), module.training) for name, module in model.named_modules())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return modules, tuple((name, x.shape, x.dtype, x.device, x.requires_grad) for name, x in tensors)
