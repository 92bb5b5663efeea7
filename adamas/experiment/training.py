"""One training run from settings to files: what `adamas train` and `adamas explain` do."""

import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas._storage.archive import write_tensors
from adamas._storage.files import own_folder, replace_text
from adamas._storage.results import Write, json_writer, text_writer, write_results
from adamas._streams import Seed
from adamas._version import __version__
from adamas.data import DATASETS, VALIDATION, Data, load, minilm_files
from adamas.experiment.activations import on_activations
from adamas.models import MODELS
from adamas.rules import RULES
from adamas.run.checkpoint import Checkpoints
from adamas.run.checkpoint import load as load_checkpoint
from adamas.run.loop import SEED_WARNING, PrivateRun
from adamas.run.make import make_private
from adamas.secure_noise import NOISES, SecureNoise

PUBLISHED_WEIGHTS = {"minilm": minilm_files}
"""Models that start from published weights, and what fetches them."""

MODEL, LEDGER, RESULT = "model.safetensors", "ledger.json", "result.json"
"""The files of a finished run in a folder."""

DIAGNOSTICS = "diagnostics.jsonl"
"""The file of diagnostics in a folder."""

CHECKPOINT, SETTINGS = "checkpoint.safetensors", "settings.json"
"""The checkpoint of a run in a folder, and what it was begun with."""

_JOURNAL = CHECKPOINT + ".journal"

SCHEDULES: dict[str, Callable[[float], float] | None] = {
    "constant": None,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""Learning-rate schedules by name: the factor of the rate after a share of the steps."""

_POSITIONAL = ("params", "input_shape", "classes")  # what the caller gives, not the user

_LINES = 50  # enough for a curve


@dataclass(frozen=True)
class Settings:
    """What defines a run of the command line; the names are those of `make_private`."""

    data: str
    model: str
    rule: str
    batch_size: int
    delta: float
    rule_options: dict[str, Any] = field(default_factory=dict)
    data_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    ema: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    max_epsilon: float | None = None
    epochs: int | None = None
    steps: int | None = None
    clip_norm: float = 1.0
    seed: int | None = None
    noise: str = "reproducible"
    engine: str = "auto"
    micro_batch_size: int | None = None
    sampling: str = "poisson"
    max_batch_size: int | None = None
    accountant: str = "pld"
    allow_large_delta: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        _validate.one_of(DATASETS, data=self.data.removesuffix(VALIDATION))
        _validate.one_of(MODELS, model=self.model)
        _validate.one_of(RULES, rule=self.rule)
        for factory, name in (
            (DATASETS[self.data.removesuffix(VALIDATION)], "data_options"),
            (MODELS[self.model], "model_options"),
            (RULES[self.rule], "rule_options"),
        ):
            known = [p for p in inspect.signature(factory).parameters if p not in _POSITIONAL]
            for option in getattr(self, name):
                if option not in known:
                    raise ValueError(f"Expected {name} among {known}, got {option!r}.")
        _validate.one_of(SCHEDULES, schedule=self.schedule)
        _validate.one_of(NOISES, noise=self.noise)
        Seed(self.seed, secure=self.noise == SecureNoise.name)


def train_and_save(
    settings: Settings,
    out: Path,
    *,
    progress: bool | None = None,
    diagnose: bool = False,
    diagnose_every: int | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    data_ledger: Path | None = None,
    elsewhere: bool = True,
) -> dict[str, Any]:
    """Trains as the settings say, writes the files into `out`, and returns the result.

    Files: `model.safetensors`, `ledger.json`, with `diagnose` `diagnostics.jsonl`, and as the last one
    `result.json`; with `checkpoint_every`, until then, `checkpoint.safetensors`, its journal and
    `settings.json`. That they can be written is tried before the first step. Only test data is evaluated.

    Args:
        settings: What to train.
        out: The folder. Other processes are kept out of it.
        progress: See `make_private`.
        diagnose: Write `run.diagnostics()` to a line of `diagnostics.jsonl` now and then, and after the last
            step with histograms; for settings with `raw`, with the comparison that is not private.
        diagnose_every: Steps between lines; None makes 50 lines at most.
        checkpoint_every: Steps between checkpoints; None for none.
        resume: Continue the run that `out` holds, if it holds one. The result of one that finished is
            returned as it is.
        data_ledger: See `make_private`.
        elsewhere: Whether files that `out` cannot take at the end are kept in a new folder under the
            system's temporary directory.

    Raises:
        ValueError: If `out` holds a result already, or an unfinished run that is not to be continued or had
            other settings; nothing is overwritten.
        RuntimeError: If another process writes to `out`, if it cannot be written, or if something failed
            after the last step: the message says where the files are.
    """
    if resume and checkpoint_every is None:
        raise ValueError("Expected --checkpoint-every with --resume.")
    if settings.raw and not diagnose:
        raise ValueError(
            "Expected --diagnose with --raw, which adds to what --diagnose writes and does nothing else."
        )
    names = [MODEL, LEDGER, RESULT]
    if diagnose:
        names.append(DIAGNOSTICS)
    if diagnose_every is not None:
        _validate.count(diagnose_every=diagnose_every)
    if checkpoint_every is not None:
        _validate.count(checkpoint_every=checkpoint_every)
        names += [SETTINGS, CHECKPOINT, _JOURNAL]
    with own_folder(out, names):
        if resume and (out / RESULT).exists():
            return _finished_before(settings, out)
        _check_folder(settings, out, resume)
        whole, model, data = task(settings)
        run = private_run(settings, model, data, progress=progress, data_ledger=data_ledger)
        if checkpoint_every is not None:
            run.checkpoints = Checkpoints(out / CHECKPOINT, checkpoint_every)
            if (out / CHECKPOINT).exists():
                load_checkpoint(out / CHECKPOINT, run)
            replace_text(out / SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")
        start = time.perf_counter()
        lines = _Lines(out / DIAGNOSTICS, run.steps_done) if diagnose else None
        problem = _train(run, lines, diagnose_every or math.ceil(run.steps / _LINES), settings.raw)
        seconds = time.perf_counter() - start
        if run.ema_model is not None:  # the averaged weights are the result: they are evaluated and saved
            run.model.load_state_dict(run.ema_model.module.state_dict())
        # Copies, since weights that are tied share their memory, which the file's format does not allow.
        weights = {name: value.clone().contiguous() for name, value in whole.state_dict().items()}
        files: dict[str, Write] = {
            MODEL: lambda path: write_tensors(path, weights),
            LEDGER: json_writer(run.ledger.state_dict()),
        }
        if lines is not None and not lines.written:
            files[DIAGNOSTICS] = text_writer("".join(lines.all))
        result: dict[str, Any] = {}
        try:
            result = _result(run, settings, data) | {"seconds": round(seconds, 2)}
            files[RESULT] = json_writer(result)
        except Exception as error:
            problem = problem or error
        write_results(files, out, remedy=_remedy(settings, out), elsewhere=elsewhere)
        if RESULT in files:
            _remove_checkpoint(out)
        if problem is not None:
            raise RuntimeError(
                f"The training is finished, but not all that follows it: {str(problem).rstrip('.')}. Its "
                f"files, {', '.join(files)}, are in {out}."
            ) from problem
        return result


def _check_folder(settings: Settings, out: Path, resume: bool) -> None:
    """Refuses a folder that holds something which this run would overwrite or continue wrongly."""
    begun, saved = (out / SETTINGS).exists(), (out / CHECKPOINT).exists()
    for name in (RESULT, CHECKPOINT, DIAGNOSTICS, MODEL, LEDGER):
        # A run that is killed before its first checkpoint has diagnostics, at most.
        goes_on = resume and begun and (saved or name == DIAGNOSTICS)
        if (out / name).exists() and not goes_on:
            raise ValueError(
                f"Expected --out without an earlier result, but {out} has {name}. Choose another folder"
                + (", or continue it with --resume." if begun and name != RESULT else ".")
            )
    if resume and begun:
        _check_same(settings, json.loads((out / SETTINGS).read_text(encoding="utf-8")), out)


def _check_same(settings: Settings, before: dict[str, Any], out: Path) -> None:
    for name, value in json.loads(json.dumps(asdict(settings))).items():
        if before.get(name) != value:
            raise ValueError(
                f"Expected --resume with the settings of the run in {out}: {name} was "
                f"{before.get(name)!r}, and is {value!r} now."
            )


def _finished_before(settings: Settings, out: Path) -> dict[str, Any]:
    """The result of a run that finished, and was perhaps killed before it removed its checkpoint."""
    result: dict[str, Any] = json.loads((out / RESULT).read_text(encoding="utf-8"))
    _check_same(settings, result["settings"], out)
    _remove_checkpoint(out)
    return result


def _remove_checkpoint(out: Path) -> None:
    """Removes what a finished run does not need; what cannot be removed does no harm."""
    with suppress(OSError):
        Checkpoints(out / CHECKPOINT).remove()
        (out / SETTINGS).unlink(missing_ok=True)


def _remedy(settings: Settings, out: Path) -> str:
    """How to get the files of a finished run that could be written nowhere."""
    if (out / CHECKPOINT).exists():
        return f"Make room, and repeat the command with --resume: it goes on from the checkpoint in {out}."
    if settings.seed is not None:
        return "Make room, and repeat the command: with the same seed the model will be the same."
    return "The model is lost. With --checkpoint-every it would not be: --resume could write it later."


class _Lines:
    """The file of diagnostics.

    Each line is one write, so that a run that dies leaves whole lines. After a write that failed, the lines
    wait for the end of the run, which they do not stop.

    Attributes:
        all: The lines.
        written: Whether they are in the file.
    """

    def __init__(self, path: Path, steps_done: int) -> None:
        self.path = path
        self.all: list[str] = []
        if path.exists():  # of a run that goes on: steps that are made again have their lines again
            found = path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in found if line.endswith("\n")]
            self.all = [line for line in whole if json.loads(line)["step"] <= steps_done]
        replace_text(path, "".join(self.all))
        self.written = True

    def add(self, content: dict[str, Any]) -> None:
        """Adds a line."""
        self.all.append(json.dumps(content, allow_nan=False) + "\n")
        if self.written:
            data = self.all[-1].encode()
            try:
                with self.path.open("ab", buffering=0) as file:
                    self.written = file.write(data) == len(data)
            except OSError:
                self.written = False


def _train(run: PrivateRun, lines: _Lines | None, every: int, raw: bool) -> Exception | None:
    """Makes the steps that are left, and settles what was spent.

    Returns:
        What failed after the last step, when there is a model to keep.
    """
    done = run.steps_done
    problem = None
    try:
        for step in run:
            done = step.number
            if lines is not None and (done == step.total or done % every == 0):
                lines.add(run.diagnostics(raw=raw, histograms=done == step.total))
    except Exception as error:
        if done < run.steps:
            raise
        problem = error
    try:
        run.close()  # also what a process reserved that died after the last step
    except Exception as error:
        problem = problem or error
    return problem


def _result(run: PrivateRun, settings: Settings, data: Data) -> dict[str, Any]:
    epsilon = run.epsilon()
    result: dict[str, Any] = {
        "epsilon": epsilon if math.isfinite(epsilon) else "inf",
        "private": run.private,
        "delta": settings.delta,
        "noise_multiplier": run.noise_multiplier,
        "noise": run.noise.name,
        "sampling_rate": run.loader.sampler.rate,
        "steps": run.steps_done,
        "test_accuracy": accuracy(run.model, data.test),
        "engine": run.engine,
        "privacy": run.privacy_statement(),
        "settings": asdict(settings),
        "version": __version__,
    }
    if settings.seed is not None:
        result["note"] = SEED_WARNING
    return result


def task(settings: Settings, load: Callable[..., Data] = load) -> tuple[nn.Module, nn.Module, Data]:
    """What the settings train, and on what.

    Args:
        settings: Which model and data.
        load: Takes the name of a data set and its options, as `adamas.data.load`.

    Returns:
        The whole model before its first step, the part of it that trains, and the data as this part sees
        them: activations, where a frozen part comes first.
    """
    name = settings.data.removesuffix(VALIDATION)
    data = load(name, **settings.data_options)
    whole = initial_model(settings, data)
    model, data = on_activations(whole, data)
    return whole, model, data if name == settings.data else data.with_validation()


def initial_model(settings: Settings, data: Data) -> nn.Module:
    """The model that the settings describe, before its first step."""
    options = dict(settings.model_options)
    if settings.model in PUBLISHED_WEIGHTS and "weights" not in options:
        options["weights"] = PUBLISHED_WEIGHTS[settings.model]()
    with torch.random.fork_rng():
        if settings.seed is not None:
            # The initial weights, which are public.
            torch.manual_seed(int(Seed(settings.seed).words("initial weights", count=1)[0]))
        return MODELS[settings.model](data.input_shape, data.classes, **options)


def private_run(
    settings: Settings, model: nn.Module, data: Data, *, progress: bool | None = None, **options: Any
) -> PrivateRun:
    """The run that the settings describe, of a model on the training examples of a data set.

    Args:
        settings: What to train.
        model: The part that trains.
        data: Its data.
        progress: See `make_private`.
        options: Other arguments of `make_private`, which do not change the result.
    """
    rule = RULES[settings.rule](model.parameters(), **settings.rule_options)
    shape = SCHEDULES[settings.schedule]
    run = make_private(
        model,
        rule,
        data.train,
        cross_entropy,
        batch_size=settings.batch_size,
        delta=settings.delta,
        epochs=settings.epochs,
        steps=settings.steps,
        epsilon=settings.epsilon,
        noise_multiplier=settings.noise_multiplier,
        max_epsilon=settings.max_epsilon,
        clip_norm=settings.clip_norm,
        seed=settings.seed,
        noise=settings.noise,
        engine=settings.engine,
        micro_batch_size=settings.micro_batch_size,
        sampling=settings.sampling,
        max_batch_size=settings.max_batch_size,
        ema=settings.ema,
        accountant=settings.accountant,
        progress=progress,
        allow_large_delta=settings.allow_large_delta,
        raw=settings.raw,
        **options,
    )
    if shape is not None:
        run.scheduler = LambdaLR(rule, lambda step: shape(step / run.steps))
    return run


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """One loss per example of a classifier."""
    *inputs, labels = batch
    return F.cross_entropy(model(*_in_full(inputs)), labels, reduction="none")


def _in_full(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Activations are kept in half precision."""
    return [x.float() if x.dtype == torch.half else x for x in inputs]


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """The share of right answers on test data, in evaluation mode."""
    was_training = model.training
    model.eval()
    right = 0
    for start in range(0, len(test), 1000):
        *inputs, labels = test[start : start + 1000]
        right += int((model(*_in_full(inputs)).argmax(1) == labels).sum())
    model.train(was_training)
    return right / len(test)
