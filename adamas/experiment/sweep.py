"""Tries hyperparameters, at a price that counts all runs.

Every run on private data spends, even one that is thrown away. There are two honest ways to choose:

- "all": all candidates run, and all results may be published. Their releases are composed: the noise is
  calibrated to the steps of all runs together.
- "best": a random number of runs, each of a random candidate, of which only the best one is published
  (Papernot and Steinke, 2022). The number of runs is geometric. This costs a few times one run, less than
  all of them, and holds only if nobody sees the others.

Candidates are compared on held-out examples. These must be public: neither way protects them.
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

from adamas import _validate
from adamas._storage.files import own_folder
from adamas._storage.results import json_writer, write_results
from adamas._streams import Seed
from adamas.accounting import calibrate
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import composed_epsilon
from adamas.data import VALIDATION, load
from adamas.experiment.settings import LEDGER, MODEL, RESULT, Settings
from adamas.experiment.training import train_and_save
from adamas.run.validation import make_sampler
from adamas.sampling import Poisson, Sampler

SELECTIONS = ("all", "best")
"""How the choice is paid for; see the module."""

_SUMMARY = "sweep.json"
_BEST = "best"
_TEMPORARY = ".sweep-"  # prefix of folders that nobody may see

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
        settings: The settings of each run; `epsilon` is the budget of all runs together. The data should be
            `<name>/validation`. A `seed` gives each run its own seed: runs with the same seed would share
            their noise, and differences of their releases would have none.
        tried: The values of each hyperparameter of the rule; all combinations are candidates.
        out: The folder of the results: of each run with "all", of the best run with "best".
        selection: One of `SELECTIONS`.
        mean_runs: How many runs "best" makes on average; None for the number of candidates.
        data_ledger: See `make_private`.
        progress: Called with the number of finished runs and of all runs.

    Returns:
        The content of `sweep.json`: the best candidate, the epsilon of the whole choice, and for "all" each
        run.

    Raises:
        ValueError: If the settings do not make a sweep, or `out` holds something else.
        RuntimeError: If another process writes to `out`, or if it cannot be written.
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
    if settings.data_options.get("neighbors") == "all":
        raise ValueError(
            "Expected data_options without neighbors='all': candidates would be compared by predictions that "
            "read training nodes, which no budget pays for."
        )
    if not tried or not all(tried.values()):
        raise ValueError("Expected values to try, such as lr=0.001,0.01.")
    if selection == "all" and mean_runs is not None:
        raise ValueError("Expected mean_runs for selection='best' only.")
    names = list(tried)
    candidates = [dict(zip(names, values, strict=True)) for values in itertools.product(*tried.values())]
    for candidate in candidates:  # wrong names are found before the first run
        _changed(settings, candidate, 1.0, number=0)
    with own_folder(out, [_SUMMARY]):
        folders = [_folder(number) for number in range(len(candidates))] if selection == "all" else [_BEST]
        _check_folder(out, folders)
        steps, sampler = _plan(settings)
        if selection == "all":
            result = _all(settings, candidates, out, steps, sampler, data_ledger, progress)
            remedy = "Make room, and repeat the command: runs that are finished are not made again."
        else:
            mean = float(len(candidates)) if mean_runs is None else mean_runs
            _validate.positive(mean_runs=mean)
            result = _best(settings, candidates, out, steps, sampler, mean, data_ledger, progress)
            remedy = f"The best run is in {out / _BEST}."
        result = {"selection": selection, "delta": settings.delta, "settings": asdict(settings)} | result
        write_results({_SUMMARY: json_writer(result)}, out, remedy=remedy)
        return result


def _all(
    settings: Settings,
    candidates: list[dict[str, Any]],
    out: Path,
    steps: int,
    sampler: Sampler,
    data_ledger: Path | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    assert settings.epsilon is not None
    whole = steps * len(candidates)
    z = calibrate.noise_multiplier_for(
        lambda z: sampler.plan(z, whole),
        epsilon=settings.epsilon,
        delta=settings.delta,
        accountant=settings.accountant,
        relation=sampler.relation,
    )
    runs = []
    for number, candidate in enumerate(candidates):
        progress(number, len(candidates))
        folder = out / _folder(number)
        chosen = _changed(settings, candidate, z, number)
        if (folder / RESULT).exists():  # of a sweep that was stopped
            found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
            if found["settings"] != json.loads(json.dumps(asdict(chosen))):
                raise ValueError(f"Expected {folder} to be a run of this sweep. Choose another folder.")
        else:
            for name in (MODEL, LEDGER):  # of a run that died while it wrote
                (folder / name).unlink(missing_ok=True)
            found = train_and_save(chosen, folder, progress=False, data_ledger=data_ledger)
        runs.append({"tried": candidate, "accuracy": found["test_accuracy"], "folder": folder.name})
    progress(len(candidates), len(candidates))
    spent = composed_epsilon(
        [(sampler.plan(z, whole), 1)], settings.delta, settings.accountant, sampler.relation
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
    sampler: Sampler,
    mean: float,
    data_ledger: Path | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    assert settings.epsilon is not None
    if mean < 1:
        raise ValueError(f"Expected mean_runs={mean!r} >= 1.")
    if not isinstance(sampler, Poisson):
        raise ValueError(
            "Expected selection='all' for nodes of a graph: the best of a random number of runs has no bound "
            "for them."
        )

    def event(z: float) -> dp_accounting.DpEvent:
        return dp_accounting.dp_event.RepeatAndSelectDpEvent(sampler.plan(z, steps), mean, _GEOMETRIC)

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
    best: tuple[float, dict[str, Any], Path] | None = None
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=out) as temporary:
        for number, candidate in enumerate(chosen):
            progress(number, count)
            folder = Path(temporary) / str(number)
            # Only the best may be seen, so nothing is kept elsewhere.
            found = train_and_save(
                _changed(settings, candidate, z, number), folder, progress=False, elsewhere=False
            )
            if best is None:
                best = (found["test_accuracy"], candidate, folder)
            elif found["test_accuracy"] > best[0]:
                shutil.rmtree(best[2])
                best = (found["test_accuracy"], candidate, folder)
            else:
                shutil.rmtree(folder)
        assert best is not None
        best[2].rename(out / _BEST)
    progress(count, count)
    spent = composed_epsilon([(event(z), 1)], settings.delta, "rdp")
    assert math.isfinite(spent)
    return {
        "epsilon": spent,
        "accounting": f"best of a geometric number of runs, {mean:g} on average, accountant rdp; "
        "only the best one may be shown",
        "noise_multiplier": z,
        "best": {"tried": best[1], "accuracy": best[0], "folder": _BEST},
    }


def _check_folder(out: Path, folders: Sequence[str]) -> None:
    """Refuses a folder in which there is no room for the runs, and removes what nobody may see."""
    if (out / _SUMMARY).exists():
        raise ValueError(
            f"Expected --out without a finished sweep, but {out} has one. Choose another folder."
        )
    for left_over in out.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left_over)
    for name in folders:
        if (out / name).exists() and (name == _BEST or not (out / name).is_dir()):
            raise ValueError(f"Expected --out without {name}, but {out} has it. Choose another folder.")


def _folder(number: int) -> str:
    return f"run-{number + 1}"


def _changed(settings: Settings, candidate: dict[str, Any], noise_multiplier: float, number: int) -> Settings:
    """Returns the settings of one run of a sweep, with a seed that no other run has."""
    seed = settings.seed
    if seed is not None:
        high, low = Seed(seed).words("run", number, count=2).tolist()
        seed = (high << 21) | (low >> 11)  # 53 bits: whole numbers that every reader of JSON keeps
    return replace(
        settings,
        seed=seed,
        rule_options={**settings.rule_options, **candidate},
        epsilon=None,
        noise_multiplier=noise_multiplier,
    )


def _plan(settings: Settings) -> tuple[int, Sampler]:
    """Returns the steps of one run, and what draws its batches."""
    data = load(settings.data.removesuffix(VALIDATION), **settings.data_options).with_validation()
    sampler = make_sampler(data.train, settings.sampling, settings.batch_size)
    if (settings.steps is None) == (settings.epochs is None):
        raise ValueError("Expected exactly one of epochs and steps.")
    steps = settings.steps or (settings.epochs or 0) * sampler.steps_per_epoch()
    return steps, sampler
