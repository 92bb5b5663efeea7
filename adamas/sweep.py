"""Trying hyperparameters, at a price that counts all of the runs.

Every run on private data spends, also those that are thrown away. There are two honest ways to choose:

- "all": all candidates run, and all of it may be published. Their releases are composed: the noise is that of
  one run with as many times the steps.
- "best": a random number of runs, each of a random candidate, of which only the best one is published
  (Papernot and Steinke, 2022). That costs less than all of them, a few times one run, and holds only if
  nobody sees the others. The number of runs is geometric.

Candidates are compared on held-out examples. These must be public: neither way hides them.
"""

import itertools
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dp_accounting

from adamas import _validate, calibrate
from adamas._files import replace_text
from adamas._streams import Seed
from adamas.data import VALIDATION, load
from adamas.data_ledger import DataLedger
from adamas.experiment import Settings, train_and_save
from adamas.ledger import composed_epsilon
from adamas.sampling import SAMPLERS

SELECTIONS = ("all", "best")
"""Ways to pay for a choice; see the module."""

_GEOMETRIC = 1.0  # the shape in dp_accounting


def sweep(
    settings: Settings,
    tried: Mapping[str, Sequence[Any]],
    out: Path,
    *,
    selection: str = "all",
    mean_runs: float | None = None,
    data_ledger: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Tries values of a rule's hyperparameters within one budget.

    Args:
        settings: The run that is tried; `epsilon` is the budget of all runs together. The data should be
            `<name>/validation`.
        tried: The values of each hyperparameter of the rule; all combinations are candidates.
        out: The folder: with "all" a folder for each run, with "best" the one of the best.
        selection: One of `SELECTIONS`.
        mean_runs: How many runs "best" makes on average; None for as many as there are candidates.
        data_ledger: See `make_private`.
        progress: Called with the finished runs and all of them.

    Returns:
        What is in `sweep.json`: the best candidate, the epsilon of the whole choice, and for "all" each run.
    """
    _validate.one_of(SELECTIONS, selection=selection)
    if settings.epsilon is None or settings.noise_multiplier is not None:
        raise ValueError("Expected epsilon, the budget of all runs together, and no noise_multiplier.")
    if settings.sampling != "poisson":
        raise ValueError(f"Expected sampling='poisson', got {settings.sampling!r}.")
    if not settings.data.endswith(VALIDATION):
        raise ValueError(
            f"Expected data={settings.data + VALIDATION!r}: candidates are compared on examples that are "
            "held out, and the test set is for the one that is chosen."
        )
    if not tried or not all(tried.values()):
        raise ValueError("Expected values to try, such as lr=0.001,0.01.")
    if (out / "sweep.json").exists():
        raise ValueError(
            f"Expected --out without a finished sweep, but {out} has one. Choose another folder."
        )
    if selection == "all" and mean_runs is not None:
        raise ValueError("Expected mean_runs for selection='best' only.")
    names = list(tried)
    candidates = [dict(zip(names, values, strict=True)) for values in itertools.product(*tried.values())]
    for candidate in candidates:  # wrong names are found before the first run
        _changed(settings, candidate, 1.0)
    steps, rate = _plan(settings)
    out.mkdir(parents=True, exist_ok=True)
    if selection == "all":
        result = _all(settings, candidates, out, steps, rate, data_ledger, progress)
    else:
        mean = float(len(candidates)) if mean_runs is None else mean_runs
        _validate.positive(mean_runs=mean)
        result = _best(settings, candidates, out, steps, rate, mean, data_ledger, progress)
    result = {"selection": selection, "delta": settings.delta, "settings": asdict(settings)} | result
    replace_text(out / "sweep.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    return result


def _all(
    settings: Settings,
    candidates: list[dict[str, Any]],
    out: Path,
    steps: int,
    rate: float,
    data_ledger: Path | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    assert settings.epsilon is not None
    z = calibrate.noise_multiplier(
        epsilon=settings.epsilon,
        delta=settings.delta,
        sampling_rate=rate,
        steps=steps * len(candidates),
        accountant=settings.accountant,
    )
    runs = []
    for number, candidate in enumerate(candidates):
        progress(number, len(candidates))
        folder = out / f"run-{number + 1}"
        chosen = _changed(settings, candidate, z)
        if (folder / "result.json").exists():  # of a sweep that was stopped
            found = json.loads((folder / "result.json").read_text())
            if found["settings"] != json.loads(json.dumps(asdict(chosen))):
                raise ValueError(f"Expected {folder} to be a run of this sweep. Choose another folder.")
        else:
            found = train_and_save(chosen, folder, progress=False, data_ledger=data_ledger)
        runs.append({"tried": candidate, "accuracy": found["test_accuracy"], "folder": folder.name})
    progress(len(candidates), len(candidates))
    spent = calibrate.epsilon(
        noise_multiplier=z,
        sampling_rate=rate,
        steps=steps * len(candidates),
        delta=settings.delta,
        accountant=settings.accountant,
    )
    best = max(runs, key=lambda run: run["accuracy"])
    return {
        "epsilon": spent,
        "accounting": f"all {len(candidates)} runs composed, accountant {settings.accountant}",
        "noise_multiplier": z,
        "best": best,
        "runs": runs,
    }


def _best(
    settings: Settings,
    candidates: list[dict[str, Any]],
    out: Path,
    steps: int,
    rate: float,
    mean: float,
    data_ledger: Path | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    assert settings.epsilon is not None
    if mean < 1:
        raise ValueError(f"Expected mean_runs={mean!r} >= 1.")

    def event(z: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
        return dp_accounting.dp_event.RepeatAndSelectDpEvent(
            dp_accounting.SelfComposedDpEvent(step, steps), mean, _GEOMETRIC
        )

    # Privacy loss distributions have no bound for this.
    z = calibrate.noise_multiplier_for(
        event, epsilon=settings.epsilon, delta=settings.delta, accountant="rdp"
    )
    if data_ledger is not None:
        DataLedger(data_ledger).reserve(
            uuid4().hex, [(event(z), 1)], title=f"sweep, {mean:g} runs on average"
        )
    draws = Seed(settings.seed).generator("sweep")
    count = int(draws.geometric(1 / mean))
    chosen = [candidates[int(i)] for i in draws.integers(len(candidates), size=count)]
    best: tuple[float, dict[str, Any]] | None = None
    with tempfile.TemporaryDirectory(prefix=".sweep-", dir=out) as temporary:
        for number, candidate in enumerate(chosen):
            progress(number, count)
            folder = Path(temporary) / str(number)
            # Two runs with one seed would share their noise.
            seed = (
                None if settings.seed is None else int(Seed(settings.seed).words("run", number, count=1)[0])
            )
            found = train_and_save(
                replace(_changed(settings, candidate, z), seed=seed), folder, progress=False
            )
            if best is None or found["test_accuracy"] > best[0]:
                best = (found["test_accuracy"], candidate)
                shutil.rmtree(out / "best", ignore_errors=True)
                folder.rename(out / "best")
            else:
                shutil.rmtree(folder)
    assert best is not None
    progress(count, count)
    spent = composed_epsilon([(event(z), 1)], settings.delta, "rdp")
    assert math.isfinite(spent)
    return {
        "epsilon": spent,
        "accounting": f"best of a geometric number of runs, {mean:g} on average, accountant rdp; "
        "only the best one may be shown",
        "noise_multiplier": z,
        "best": {"tried": best[1], "accuracy": best[0], "folder": "best"},
    }


def _changed(settings: Settings, candidate: dict[str, Any], noise_multiplier: float) -> Settings:
    return replace(
        settings,
        rule_options={**settings.rule_options, **candidate},
        epsilon=None,
        noise_multiplier=noise_multiplier,
    )


def _plan(settings: Settings) -> tuple[int, float]:
    """Steps of one run, and its sampling rate."""
    data = load(settings.data.removesuffix(VALIDATION), **settings.data_options).with_validation()
    sampler = SAMPLERS[settings.sampling](len(data.train), settings.batch_size)
    if (settings.steps is None) == (settings.epochs is None):
        raise ValueError("Expected exactly one of epochs and steps.")
    steps = settings.steps or (settings.epochs or 0) * sampler.steps_per_epoch()
    return steps, sampler.rate
