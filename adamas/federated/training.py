"""One federated training from settings to files, over whatever carries the messages.

Files in its folder: `state.safetensors`, from which it goes on; `rounds.jsonl`, a line for each round; at the
end `result.json` and `model.safetensors`.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from adamas._files import replace_file
from adamas._version import __version__
from adamas._words import bound
from adamas.experiment import accuracy
from adamas.federated.algorithm import Client
from adamas.federated.server import NoAnswerError, RoundReport, Server
from adamas.federated.settings import FederatedSettings
from adamas.federated.simulation import InProcess, Transport, run_rounds
from adamas.federated.task import Task
from adamas.run import SEED_WARNING

STATE = "state.safetensors"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
MODEL = "model.safetensors"

Line = dict[str, Any]
"""What is kept of a round, or of a training."""

Connect = Callable[[Server], Transport]
"""Reaches the clients of a server."""


def train(
    settings: FederatedSettings,
    task: Task,
    out: Path,
    *,
    sizes: Sequence[int],
    connect: Connect,
    progress: Callable[[Line], None] = lambda _: None,
) -> Line:
    """Runs a training, or the rest of it, and returns its result.

    Args:
        settings: The training.
        task: Its model and test data.
        out: The folder. One that holds a training of the same settings is continued.
        sizes: The number of examples of each client.
        connect: How the clients are reached.
        progress: Called with each round's line.

    Raises:
        ValueError: If the folder holds a training of other settings, or a finished one.
        NoAnswerError: If a round had no answer that can be used; the folder then holds what was reached.
    """
    if (out / RESULT).exists():
        raise ValueError(f"Expected --out without a finished training, but {out} has one. Choose another.")
    server = make_server(settings, task, sizes)
    transport = connect(server)
    out.mkdir(parents=True, exist_ok=True)
    _load(server, settings, out)
    _trim(out / ROUNDS, server.round)
    test = task.test_data()
    last = time.perf_counter()

    def closed(report: RoundReport) -> None:
        nonlocal last
        line: Line = {"round": report.number + 1}
        if settings.unit == "record":  # else it is private who took part
            line["answered"] = list(report.answered)
            line["left_out"] = {str(client): reason for client, reason in report.left_out.items()}
        line["seconds"] = round(time.perf_counter() - last, 2)
        if test is not None:
            line["test_accuracy"] = accuracy(server.model, test)
        with (out / ROUNDS).open("a") as file:
            file.write(json.dumps(line) + "\n")
        _save(server, settings, out)
        last = time.perf_counter()
        progress(line)

    try:
        # What a round costs is on disk before a client is asked, so that a crash cannot hide it.
        run_rounds(server, transport, opened=lambda: _save(server, settings, out), closed=closed)
    except NoAnswerError:
        _save(server, settings, out)
        raise
    result = _result(server, settings) | {
        "test_accuracy": None if test is None else accuracy(server.model, test),
        "label_counts": task.label_counts(),
    }
    weights = {name: value.contiguous() for name, value in server.model.state_dict().items()}
    replace_file(out / MODEL, lambda path: save_file(weights, path))
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    replace_file(out / RESULT, lambda path: _write_text(path, text))
    return result


def train_in_process(
    settings: FederatedSettings, task: Task, out: Path, *, progress: Callable[[Line], None] = lambda _: None
) -> Line:
    """Runs a training with all clients in this process; see `train`."""

    def connect(server: Server) -> InProcess:
        return in_process(server, settings, task)

    return train(settings, task, out, sizes=client_sizes(settings, task), connect=connect, progress=progress)


def in_process(server: Server, settings: FederatedSettings, task: Task) -> InProcess:
    """All clients of a server in this process, with one model: each round begins by overwriting it."""
    noise = server.noise_multiplier
    clients = [make_client(settings, task, number, noise) for number in range(settings.clients)]
    for client in clients[1:]:
        client.model = clients[0].model
    return InProcess(server, clients, settings.seed)


def client_sizes(settings: FederatedSettings, task: Task) -> list[int]:
    """The number of examples of each client, where all of them are here."""
    return [
        len(task.client_data(number, settings.clients))  # type: ignore[arg-type]
        for number in range(settings.clients)
    ]


def make_server(settings: FederatedSettings, task: Task, sizes: Sequence[int]) -> Server:
    """The server's side of a training, before its first round."""
    plan = settings.plan(list(sizes))
    model = task.make_model()
    return Server(
        settings.make_algorithm(task.make_blocks(model)),
        model,
        sizes=sizes,
        plan=plan,
        batch_size=settings.batch_size,
        participation=settings.participation,
        noise_multiplier=settings.noise(plan),
        clip_norm=settings.clip_norm,
        seed=settings.seed,
    )


def make_client(settings: FederatedSettings, task: Task, number: int, noise_multiplier: float) -> Client:
    """A client's side, with fresh memory and ledger."""
    by_record = settings.unit == "record"
    return Client(
        task.make_model(),
        task.client_data(number, settings.clients),
        task.loss,
        batch_size=settings.batch_size,
        noise_multiplier=noise_multiplier if by_record else 0.0,
        clip_norm=settings.clip_norm if by_record else math.inf,
        delta=settings.delta,
        engine=settings.engine,
        micro_batch_size=settings.micro_batch_size,
    )


def _result(server: Server, settings: FederatedSettings) -> Line:
    epsilon = server.epsilon()
    result: Line = {
        "epsilon": epsilon if math.isfinite(epsilon) else "inf",
        "private": math.isfinite(epsilon),
        "privacy": _privacy_statement(server, settings),
        "delta": settings.delta,
        "noise_multiplier": server.noise_multiplier,
        "rounds": server.round,
        "settings": asdict(settings),
        "version": __version__,
    }
    if settings.unit == "record":
        result["rounds_asked"] = server.asked
        result["sizes"] = list(server.sizes)
    return result


def _privacy_statement(server: Server, settings: FederatedSettings) -> str:
    """The guarantee in words."""
    epsilon, noise = server.epsilon(), server.noise_multiplier
    if not math.isfinite(epsilon):
        return "The training is NOT PRIVATE, its epsilon is infinite: its noise multiplier is 0."
    whose = "one record of one client" if settings.unit == "record" else "one client with all its records"
    words = (
        f"The {server.round} rounds are ({bound(epsilon)}, {settings.delta:g})-differentially private under "
        f"adding or removing {whose}, with noise multiplier {noise:g} and accountant {settings.accountant}"
    )
    if settings.unit == "record":
        everywhere = server.plan.epsilon(noise, rounds=settings.rounds)
        words += (
            f": the client with the largest epsilon took part in {server.asked[_worst(server)]} of them. A "
            f"client with the fewest records that took part in all would have {bound(everywhere)}"
        )
    if settings.count_on_participation:
        words += (
            ". Counting on a random choice of clients that nobody knows (nested bound), "
            f"{settings.rounds} rounds are ({bound(server.plan.epsilon(noise))}, {settings.delta:g})-"
            "differentially private"
        )
    return words + "." + (f" {SEED_WARNING}" if settings.seed is not None else "")


def _worst(server: Server) -> int:
    epsilons = server.epsilons()
    return epsilons.index(max(epsilons))


def _save(server: Server, settings: FederatedSettings, out: Path) -> None:
    """One file, so that tensors and counters are of the same round."""
    saved = server.state_dict()
    tensors = {
        f"{record}/{name}": value.contiguous()
        for record, arrays in saved.pop("state").items()
        for name, value in arrays.items()
    }
    text = json.dumps(saved | {"settings": asdict(settings)})
    replace_file(out / STATE, lambda path: save_file(tensors, path, {"state": text}))


def _load(server: Server, settings: FederatedSettings, out: Path) -> None:
    if not (out / STATE).exists():
        return
    with safe_open(out / STATE, "pt") as file:
        saved = json.loads(file.metadata()["state"])
    before = saved.pop("settings")
    for name, value in json.loads(settings.to_json()).items():
        if before.get(name) != value:
            raise ValueError(
                f"Expected --out of a training with {name}={value!r}, but {out} has one with "
                f"{before.get(name)!r}. Choose another folder."
            )
    if server.algorithm.clients_remember:
        raise ValueError(
            f"Expected --out without a begun training: clients of {settings.algorithm} keep what a new start "
            f"does not find. Choose another folder than {out}."
        )
    state: dict[str, dict[str, Any]] = {}
    for key, value in load_file(out / STATE).items():
        record, name = key.split("/", 1)
        state.setdefault(record, {})[name] = value
    server.load_state_dict(saved | {"state": state})


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _trim(file: Path, rounds: int) -> None:
    """Removes lines of rounds that the saved state does not have: they will be run again."""
    if file.exists():
        kept = [line for line in file.read_text().splitlines() if _is_before(line, rounds)]
        file.write_text("".join(line + "\n" for line in kept))


def _is_before(line: str, rounds: int) -> bool:
    try:
        return bool(json.loads(line)["round"] <= rounds)
    except ValueError:  # cut short
        return False
