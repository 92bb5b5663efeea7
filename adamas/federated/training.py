"""Runs a federated training from settings to files, over any transport.

Files in its folder: `state.safetensors`, from which a stopped training continues; `rounds.jsonl`, with a
line per round; and at the end `result.json` and `model.safetensors`.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from adamas._storage.archive import read_archive, write_archive, write_tensors
from adamas._storage.files import own_folder, replace_file, replace_text
from adamas._version import __version__
from adamas._words import rounded_up
from adamas.experiment.task import accuracy
from adamas.federated.client import Client
from adamas.federated.rounds import Transport, run_rounds
from adamas.federated.server import NoAnswerError, RoundReport, Server
from adamas.federated.settings import FederatedSettings
from adamas.federated.simulation import InProcess
from adamas.federated.task import Task
from adamas.run.loop import SEED_WARNING
from adamas.run.options import SharedOptions

STATE = "state.safetensors"
_KIND, _VERSION = "federated training", 1  # of that file
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
MODEL = "model.safetensors"

# Options that a client hands to its runs. The others are its own: the server has turned epsilon into noise,
# each round has a seed, and noise and clipping are the server's for the unit "client".
_PASSED_ON = {one.name for one in fields(SharedOptions)} - {"epsilon"} - {one.name for one in fields(Client)}

Line = dict[str, Any]
"""The record of a round, or of a training."""

Connect = Callable[[Server], Transport]
"""Makes the transport to the clients of a server."""


def train(
    settings: FederatedSettings,
    task: Task,
    out: Path,
    *,
    sizes: Sequence[int],
    connect: Connect,
    progress: Callable[[Line], None] = lambda _: None,
) -> Line:
    """Runs a training, or continues a stopped one, and returns its result.

    Args:
        settings: The training.
        task: Its model and test data.
        out: The folder. A stopped training with the same settings is continued.
        sizes: Number of examples of each client.
        connect: Makes the transport.
        progress: Called with each round's line.

    Raises:
        ValueError: If the folder holds a training with other settings, or a finished one.
        NoAnswerError: If no client sends a usable update. The folder then holds the state that was reached.
    """
    with own_folder(out, [STATE, ROUNDS, MODEL, RESULT]):
        return _train(settings, task, out, sizes, connect, progress)


def _train(
    settings: FederatedSettings,
    task: Task,
    out: Path,
    sizes: Sequence[int],
    connect: Connect,
    progress: Callable[[Line], None],
) -> Line:
    if (out / RESULT).exists():
        raise ValueError(f"Expected --out without a finished training, but {out} has one. Choose another.")
    server = make_server(settings, task, sizes)
    transport = connect(server)
    _load(server, settings, out)
    _trim(out / ROUNDS, server.round)
    test = task.test_data()
    last = time.perf_counter()

    def closed(report: RoundReport) -> None:
        nonlocal last
        line: Line = {"round": report.number + 1}
        if not server.secret:  # else who took part is private, and the time would tell how many
            line["answered"] = list(report.answered)
            line["left_out"] = {str(client): reason for client, reason in report.left_out.items()}
            line["seconds"] = round(time.perf_counter() - last, 2)
        _save(server, settings, out)  # before anything about the round is shown
        if test is not None:
            line["test_accuracy"] = accuracy(server.model, test)
        with (out / ROUNDS).open("a") as file:
            file.write(json.dumps(line) + "\n")
        last = time.perf_counter()
        progress(line)

    try:
        # The cost of a round is on disk before a client is asked, so that a crash cannot hide it. The round
        # is then lost, and the training continues with the next one, within its budget.
        run_rounds(server, transport, opened=lambda: _save(server, settings, out), closed=closed)
    except NoAnswerError:
        _save(server, settings, out)
        raise
    result = _result(server, settings) | {
        "test_accuracy": None if test is None else accuracy(server.model, test),
        "label_counts": None if settings.unit == "client" else task.label_counts(),
    }
    # Copies: tied weights share memory, which the file format does not allow.
    weights = {name: value.clone().contiguous() for name, value in server.model.state_dict().items()}
    replace_file(out / MODEL, lambda path: write_tensors(path, weights))
    replace_text(out / RESULT, json.dumps(result, indent=2, allow_nan=False) + "\n")
    return result


def train_in_process(
    settings: FederatedSettings, task: Task, out: Path, *, progress: Callable[[Line], None] = lambda _: None
) -> Line:
    """Runs a training with all clients in this process. See `train`."""

    def connect(server: Server) -> InProcess:
        return in_process(server, settings, task)

    return train(settings, task, out, sizes=client_sizes(settings, task), connect=connect, progress=progress)


def in_process(server: Server, settings: FederatedSettings, task: Task) -> InProcess:
    """Makes all clients in this process. They share one model, which each round begins by overwriting."""
    noise = server.noise_multiplier
    clients = [make_client(settings, task, number, noise) for number in range(settings.clients)]
    for client in clients[1:]:
        client.model = clients[0].model
    return InProcess(server, clients, settings.seed)


def client_sizes(settings: FederatedSettings, task: Task) -> list[int]:
    """Counts the examples of each client, if all data is in this process."""
    return [
        len(task.client_data(number, settings.clients))  # type: ignore[arg-type]
        for number in range(settings.clients)
    ]


def make_server(settings: FederatedSettings, task: Task, sizes: Sequence[int]) -> Server:
    """Makes the server of a training, before its first round."""
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
    """Makes a client with an empty memory and ledger."""
    by_record = settings.unit == "record"
    return Client(
        task.make_model(),
        task.client_data(number, settings.clients),
        task.loss,
        batch_size=settings.batch_size,
        noise_multiplier=noise_multiplier if by_record else 0.0,
        clip_norm=settings.clip_norm if by_record else math.inf,
        delta=settings.delta,
        options={
            **{name: getattr(settings, name) for name in _PASSED_ON},
            "allow_large_delta": not by_record,  # the delta is then about clients, not about records
        },
    )


def _result(server: Server, settings: FederatedSettings) -> Line:
    epsilon = server.epsilon()
    private = math.isfinite(epsilon)
    result: Line = {
        "epsilon": epsilon if private else "inf",
        "private": private,
        "privacy": _privacy_statement(server, settings, epsilon),
        "delta": settings.delta,
        "noise_multiplier": server.noise_multiplier,
        "rounds": server.round,
        "lost_rounds": server.lost,
        "steps": server.plan.steps,
        "settings": asdict(settings),
        "version": __version__,
    }
    if not server.secret:
        result["rounds_asked"] = server.asked
        result["sizes"] = list(server.sizes)
    return result


def _privacy_statement(server: Server, settings: FederatedSettings, epsilon: float) -> str:
    """Writes the guarantee as sentences."""
    noise = server.noise_multiplier
    if not math.isfinite(epsilon):
        return "The training is NOT PRIVATE, its epsilon is infinite: its noise multiplier is 0."
    whose = "one record of one client" if settings.unit == "record" else "one client with all its records"
    words = (
        f"The {server.round} rounds are ({rounded_up(epsilon)}, {settings.delta:g})-differentially private "
        f"under adding or removing {whose}, with noise multiplier {noise:g} and accountant "
        f"{settings.accountant}"
    )
    if settings.count_on_participation:
        everywhere = replace(server.plan, participation=None).epsilon(noise)
        words += (
            ". This counts on a random choice of clients that nobody knows (nested bound); for whoever knows "
            f"that a client took part in all rounds it is ({rounded_up(everywhere)}, {settings.delta:g})"
        )
    elif settings.unit == "record":
        words += (
            f": no client took part in more than {max(server.asked)} of them. A client with the fewest "
            f"records that took part in all would have {rounded_up(server.plan.epsilon(noise))}"
        )
    return words + "." + (f" {SEED_WARNING}" if settings.seed is not None else "")


def _save(server: Server, settings: FederatedSettings, out: Path) -> None:
    """Writes tensors and counters to one file, so that they are of the same round."""
    content = {"server": server.state_dict(), "settings": json.loads(settings.to_json())}
    write_archive(out / STATE, _KIND, _VERSION, content)


def _load(server: Server, settings: FederatedSettings, out: Path) -> None:
    if not (out / STATE).exists():
        return
    content = read_archive(out / STATE, _KIND, _VERSION)
    before = content["settings"]
    for name, value in json.loads(settings.to_json()).items():
        if before.get(name) != value:
            raise ValueError(
                f"Expected --out of a training with {name}={value!r}, but {out} has one with "
                f"{before.get(name)!r}. Choose another folder."
            )
    if server.algorithm.clients_remember:
        raise ValueError(
            f"Expected --out without a stopped training: the clients of {settings.algorithm} keep state that "
            f"a restart does not find. Choose another folder than {out}."
        )
    server.load_state_dict(content["server"])


def _trim(file: Path, rounds: int) -> None:
    """Removes the lines of rounds that the saved state does not include: they will run again."""
    if file.exists():
        kept = [line for line in file.read_text().splitlines() if _is_before(line, rounds)]
        file.write_text("".join(line + "\n" for line in kept))


def _is_before(line: str, rounds: int) -> bool:
    try:
        return bool(json.loads(line)["round"] <= rounds)
    except ValueError:  # cut short
        return False
