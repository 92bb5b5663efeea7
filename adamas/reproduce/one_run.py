"""Makes one run of a table in a process of its own, and returns what is worth keeping."""

import functools
import json
import os
import platform
import time
from dataclasses import replace

import torch

from adamas._version import __version__
from adamas.data import Data, load
from adamas.diagnostics import diagnose
from adamas.errors import UnsupportedError
from adamas.experiment.training import Settings, accuracy, private_run, task
from adamas.federated import Server, run_rounds
from adamas.federated.server import RoundReport
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import DataTask
from adamas.federated.training import client_sizes, in_process, make_server
from adamas.reproduce.results import Line, plain_settings, resolved_options
from adamas.run.loop import PrivateRun

THREADS = 1
"""Threads of a run. Sums depend on it in their last bits, so it is the same for any number of jobs."""

_ACCOUNTANTS = ("pld", "rdp")


def finished_run(settings: Settings | FederatedSettings, evaluations: int, histograms: bool) -> Line:
    """Trains as the settings say and returns what is worth keeping.

    Of the training data it says nothing but, for federated trainings, how the classes of a public data set
    are spread over the clients.
    """
    if isinstance(settings, FederatedSettings):
        line = _federated(settings, evaluations)
    else:
        line = _central(settings, evaluations, histograms)
    return {
        "settings": plain_settings(settings),
        "options": resolved_options(settings),
        "delta": settings.delta,
        "version": __version__,
        "machine": _machine(),
    } | line


def _central(settings: Settings, evaluations: int, histograms: bool) -> Line:
    _, model, data = task(settings, _load)
    run = private_run(settings, model, data, progress=False)
    marks = _marks(run.steps, evaluations)
    curve = []
    start = time.perf_counter()
    for step in run:
        if step.number in marks and step.number != step.total:
            curve.append([step.number, _accuracy(run, data)])
    curve.append([run.steps_done, _accuracy(run, data)])
    seconds = time.perf_counter() - start
    seen = diagnose(run.rule, run.model)["overall"]
    kept = run.diagnostics(raw=run.raw, histograms=True) if histograms else {}
    return {
        "private": run.private,
        "epsilon": {name: _epsilon(run, name) for name in _ACCOUNTANTS} if run.private else "inf",
        "noise_multiplier": run.noise_multiplier,
        "sampling_rate": run.loader.sampler.rate,
        "steps": run.steps_done,
        "test_accuracy": curve[-1][1],
        "curve": curve,
        "parameters": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        "state_bytes_per_parameter": seen["state_bytes_per_parameter"],
        **({"moments": kept} if histograms else {}),
        "engine": run.engine,
        "seconds": round(seconds, 1),
    }


def _federated(settings: FederatedSettings, evaluations: int) -> Line:
    """Trains with all clients in this process. The curve is over rounds; epsilon is that of all rounds."""
    made = DataTask(settings, _load)
    server = make_server(settings, made, client_sizes(settings, made))
    marks = _marks(settings.rounds, evaluations)
    curve = []
    start = time.perf_counter()

    def closed(report: RoundReport) -> None:
        if report.left_out:
            raise RuntimeError(f"Clients left round {report.number} out: {dict(report.left_out)}.")
        if server.round in marks or server.round == settings.rounds:
            curve.append([server.round, accuracy(server.model, made.test_data())])

    run_rounds(server, in_process(server, settings, made), closed=closed)
    private = server.noise_multiplier > 0
    state = server.state
    return {
        "private": private,
        "epsilon": {name: _worst(server, name) for name in _ACCOUNTANTS} if private else "inf",
        "noise_multiplier": server.noise_multiplier,
        "sampling_rate": server.plan.sampling_rate,
        "steps": server.plan.steps,
        "test_accuracy": curve[-1][1],
        "curve": curve,
        "parameters": sum(p.numel() for p in state["parameters"].values()),
        "upload": sum(
            x.numel()
            for name in server.algorithm.uploads
            for x in state["parameters" if name == "increment" else name].values()
        ),
        "label_counts": made.label_counts(),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _worst(server: Server, accountant: str) -> float:
    """Returns the worst epsilon: of a record in the smallest client, if it takes part in all rounds."""
    return replace(server.plan, accountant=accountant).epsilon(server.noise_multiplier)


def _marks(total: int, evaluations: int) -> set[int]:
    """Returns the steps before the end at which the accuracy is measured."""
    return {round(total * mark / evaluations) for mark in range(1, evaluations)}


def _load(name: str, **options: object) -> Data:
    """Loads a data set once per process."""
    return _loaded(name, json.dumps(options))


@functools.lru_cache(maxsize=1)
def _loaded(name: str, options: str) -> Data:
    return load(name, **json.loads(options))


def _epsilon(run: PrivateRun, accountant: str) -> float | None:
    """Returns the epsilon; None if the accountant has no bound for the sampling."""
    try:
        return run.epsilon(accountant)
    except UnsupportedError:
        return None


def _accuracy(run: PrivateRun, data: Data) -> float:
    return accuracy(run.ema_model or run.model, data.test)


def _machine() -> str:
    processor = platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {THREADS} thread, torch {torch.__version__}"
