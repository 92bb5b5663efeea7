"""One training run from settings to files: what `adamas train` and `adamas explain` do."""

import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas._files import replace_text
from adamas._streams import Seed
from adamas._version import __version__
from adamas.activations import on_activations
from adamas.checkpoint import Checkpoints
from adamas.checkpoint import load as load_checkpoint
from adamas.data import DATASETS, VALIDATION, Data, load, minilm_files
from adamas.models import MODELS
from adamas.rules import RULES
from adamas.run import SEED_WARNING, PrivateRun
from adamas.secure_noise import NOISES, SecureNoise
from adamas.training import make_private

PUBLISHED_WEIGHTS = {"minilm": minilm_files}
"""Models that start from published weights, and what fetches them."""

DIAGNOSTICS = "diagnostics.jsonl"
"""The file of diagnostics in a folder."""

CHECKPOINT, SETTINGS = "checkpoint.safetensors", "settings.json"
"""The checkpoint of a run in a folder, and what it was begun with."""

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
) -> dict[str, Any]:
    """Trains as the settings say, writes the files into `out`, and returns the result.

    Files: `result.json`, `model.safetensors`, `ledger.json`, with `diagnose` `diagnostics.jsonl`, and with
    `checkpoint_every`, until the end, `checkpoint.safetensors` and `settings.json`. Only test data is
    evaluated.

    Args:
        settings: What to train.
        out: The folder.
        progress: See `make_private`.
        diagnose: Write `run.diagnostics()` to a line of `diagnostics.jsonl` now and then, and after the last
            step with histograms; for settings with `raw`, with the comparison that is not private.
        diagnose_every: Steps between lines; None makes 50 lines at most.
        checkpoint_every: Steps between checkpoints; None for none.
        resume: Continue the run that `out` has a checkpoint of, if it has one.
        data_ledger: See `make_private`.

    Raises:
        ValueError: If `out` holds a result already, or an unfinished run that is not to be continued or had
            other settings; nothing is overwritten.
    """
    _check_folder(settings, out, checkpoint_every, resume)
    if settings.raw and not diagnose:
        raise ValueError(
            "Expected --diagnose with --raw, which adds to what --diagnose writes and does nothing else."
        )
    if diagnose_every is not None:
        _validate.count(diagnose_every=diagnose_every)
    whole, model, data = task(settings)
    run = private_run(
        settings,
        model,
        data,
        progress=progress,
        data_ledger=data_ledger,
    )
    out.mkdir(parents=True, exist_ok=True)
    if checkpoint_every is not None:
        _validate.count(checkpoint_every=checkpoint_every)
        run.checkpoints = Checkpoints(out / CHECKPOINT, checkpoint_every)
        if (out / CHECKPOINT).exists():
            load_checkpoint(out / CHECKPOINT, run)
        replace_text(out / SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")
    start = time.perf_counter()
    if diagnose:
        _train_and_diagnose(
            run, out / DIAGNOSTICS, diagnose_every or math.ceil(run.steps / _LINES), settings.raw
        )
    else:
        for _ in run:
            pass
    seconds = time.perf_counter() - start
    if run.ema_model is not None:  # the averaged weights are the result: they are evaluated and saved
        run.model.load_state_dict(run.ema_model.module.state_dict())
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
        "seconds": round(seconds, 2),
        "engine": run.engine,
        "privacy": run.privacy_statement(),
        "settings": asdict(settings),
        "version": __version__,
    }
    if settings.seed is not None:
        result["note"] = SEED_WARNING
    weights = {name: p.contiguous() for name, p in whole.state_dict().items()}
    save_file(weights, out / "model.safetensors")
    _write_json(out / "ledger.json", run.ledger.state_dict())
    _write_json(out / "result.json", result)
    for name in (CHECKPOINT, SETTINGS):
        (out / name).unlink(missing_ok=True)
    return result


def _check_folder(settings: Settings, out: Path, checkpoint_every: int | None, resume: bool) -> None:
    """Refuses a folder that holds something which this run would overwrite or continue wrongly."""
    if resume and checkpoint_every is None:
        raise ValueError("Expected --checkpoint-every with --resume.")
    begun = (out / CHECKPOINT).exists()
    for name in ("result.json", CHECKPOINT, DIAGNOSTICS):
        if (out / name).exists() and not (resume and begun and name != "result.json"):
            raise ValueError(
                f"Expected --out without an earlier result, but {out} has {name}. Choose another folder"
                + (", or continue it with --resume." if name == CHECKPOINT else ".")
            )
    if begun:
        before = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
        for name, value in json.loads(json.dumps(asdict(settings))).items():
            if before.get(name) != value:
                raise ValueError(
                    f"Expected --resume with the settings of the run in {out}: {name} was "
                    f"{before.get(name)!r}, and is {value!r} now."
                )


def _train_and_diagnose(run: PrivateRun, path: Path, every: int, raw: bool) -> None:
    """Each line is one write, so that a run that dies leaves whole lines."""
    kept = []
    if path.exists():  # of a run that goes on: steps that are made again have their lines again
        kept = [line for line in path.read_bytes().splitlines() if json.loads(line)["step"] <= run.steps_done]
    replace_text(path, "".join(line.decode() + "\n" for line in kept))
    with path.open("ab", buffering=0) as file:
        for step in run:
            last = step.number == step.total
            if last or step.number % every == 0:
                line = json.dumps(run.diagnostics(raw=raw, histograms=last), allow_nan=False)
                file.write(line.encode() + b"\n")


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


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
