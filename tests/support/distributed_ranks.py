"""Two processes with a gloo group between them, and what the tests of `adamas.distributed` run on them.

Every function whose first argument is `rank` runs in both processes, and returns plain data or NumPy arrays.
"""

import io
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import rules
from adamas.distributed import Ranks, write_once
from adamas.noise import GaussianNoise
from tests.support.processes import fork_server

N = 60
WORLD = 2
SEED = 7


class Pool:
    """Two ranks that wait for functions to run; a process that has ended gives the result "ended"."""

    def __init__(self, folder):
        context = fork_server()
        self._pipes, self._processes = [], []
        for rank in range(WORLD):
            mine, its = context.Pipe()
            process = context.Process(target=_serve, args=(its, rank, str(folder / "store")))
            process.start()
            its.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def __call__(self, function, *args, limit=600.0, **kwargs):
        """The results of `function(rank, ...)` on rank 0 and rank 1; an exception is its type and text."""
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
        results = []
        end = time.monotonic() + limit
        for pipe in self._pipes:
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"no result of {function.__name__} after {limit} seconds")
                results.append(pipe.recv())
            except EOFError:
                results.append("ended")
        return results

    def close(self):
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


class Failure:
    """An exception that a rank raised."""

    def __init__(self, error):
        self.kind, self.text = type(error).__name__, str(error)

    def __repr__(self):
        return f"{self.kind}: {self.text}"


def _serve(pipe, rank, store):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timedelta(minutes=5)
    )
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        torch.manual_seed(rank)  # what ranks have in common must not come from the global generator
        try:
            pipe.send(function(rank, *args, **kwargs))
        except Exception as error:
            pipe.send(Failure(error))


# --- a small run, the same in one process and in two --------------------------------------------------------


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def make_data(n=N):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] > 0).long())


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def make_rule(name, model, **options):
    if name == "stock":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    if name == "adadps":
        scales = {p: torch.linspace(0.5, 2.0, p.numel()).view(p.shape) for p in model.parameters()}
        options |= {"preconditioner": scales}
    return rules.RULES[name](model.parameters(), **options)


def make_run(rule="macadam", distributed=False, model=None, data=None, loss=loss, lr=0.05, **changes):
    model = model or make_model()
    arguments = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": SEED}
    arguments |= {"accountant": "rdp"} | changes  # the fast one
    made = make_rule(rule, model, **({} if rule == "stock" else {"lr": lr}))
    return adamas.make_private(model, made, data or make_data(), loss, distributed=distributed, **arguments)


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def values(mapping):
    """The numbers of a mapping by parameter, in its order."""
    return np.concatenate([np.ravel(v.numpy() if torch.is_tensor(v) else v) for v in mapping.values()])


def outcome(run):
    """Trains to the end: parameters, releases and variances, epsilon, the noise's position, geometry."""
    releases = [(values(s.release.mean), values(s.release.noise_variance)) for s in run]
    state = run.state_dict()
    geometry = run.geometry()
    return {
        "parameters": vector(run.model),
        "releases": np.concatenate([r for r, _ in releases]),
        "variances": np.concatenate([v for _, v in releases]),
        "scale": values(geometry.scale),
        "center": values(geometry.center or {0: 0.0}),
        "epsilon": run.epsilon(),
        "ledger": repr(run.ledger.entries),
        "draws": state["noise"]["draws"],
        "steps_done": run.steps_done,
    }


# --- what the ranks do --------------------------------------------------------------------------------------


def train(rank, **settings):
    return outcome(make_run(distributed=True, **settings))


def train_in_a_group(rank):
    """A group of both ranks, and a group of rank 0 alone, for which rank 1 is no member."""
    both = outcome(make_run(distributed=dist.new_group([0, 1])))
    alone = dist.new_group([0])
    try:
        return both, outcome(make_run(distributed=alone))
    except TypeError as error:
        return both, Failure(error)


class Noting(TensorDataset):
    """Notes which examples are loaded."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.loaded = []

    def __getitem__(self, index):
        self.loaded.append(int(index))
        return super().__getitem__(index)


def examples_seen(rank, **settings):
    """What this rank loaded and its model drew at each step, its progress, its seed's name, the settings."""
    data, seen, drawn = Noting(*make_data().tensors), [], []

    def noting_loss(model, batch):
        drawn.append(float(torch.rand(())))
        return loss(model, batch)

    run = make_run(distributed=True, data=data, loss=noting_loss, engine="bookkeeping", **settings)
    for batch in run.batches():
        data.loaded.clear()
        drawn.clear()
        run.privatize(batch)
        seen.append((list(data.loaded), list(drawn)))
    return seen, run.progress, run.noise.seed.words("test", count=4).tolist(), run.state_dict()["settings"]


def noise_only(rank, coordinates, noise_multiplier):
    """The release of a model whose gradients are 0, with a secret seed."""
    model = nn.Linear(coordinates, 1, bias=False)
    data = TensorDataset(torch.zeros(N, coordinates))

    def flat_loss(model, batch):
        return model(batch[0]).squeeze(1)

    run = adamas.make_private(
        *(model_with_equal_values(model), rules.SGD(model.parameters(), lr=0.1), data, flat_loss),
        **{"batch_size": 10, "steps": 1, "noise_multiplier": noise_multiplier, "delta": 1e-3},
        distributed=True,
    )
    (step,) = run
    (noise,) = step.release.mean.values()
    return 10 * noise.numpy().ravel()


def model_with_equal_values(model):
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    return model


def fail_in_the_loss(rank, failing_step):
    """Rank 1's loss raises at a step; both go on afterwards, as after an error that was seen to."""
    broken = []

    def fragile_loss(model, batch):
        if broken and rank == 1:
            raise ZeroDivisionError("the loss of rank 1")
        return loss(model, batch)

    run = make_run(distributed=True, loss=fragile_loss, engine="loop")
    for step in run:
        if step.number == failing_step - 1:
            break
    broken.append(True)
    try:
        next(iter(run))
    except Exception as error:
        failure = Failure(error)
    broken.clear()
    at_failure = (run.steps_done, repr(run.ledger.entries), run.noise.draws)
    return failure, at_failure, outcome(run)["parameters"]


def construct(rank, odd, usual=None):
    """`make_private` with other settings on rank 1."""
    return make_run(distributed=True, **(odd if rank else usual or {})).steps


def construct_unsupported(rank):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)) if rank else None
    return make_run(distributed=True, model=model)


def drift(rank, how):
    """Rank 1 changes something of its own after two steps."""
    run = make_run(distributed=True)
    for step in run:
        if step.number == 2 and rank == 1:
            if how == "weights":
                with torch.no_grad():
                    run.model[0].weight[0, 0] += 1e-12
            elif how == "lr":
                run.rule.param_groups[0]["lr"] *= 2
            elif how == "noise":
                run.extend(steps=4, noise_multiplier=0.5)
            elif how == "draws":
                run.noise.draws += 1
            else:
                run.state_dict()
                return run.load_state_dict({})
    return run.steps_done


def used_keys(rank, folder):
    """Which keys of the noise a run uses that is saved, goes on, and is continued with another rate."""
    used = []
    original = GaussianNoise.add_normal_

    def seen(self, out, std=1.0, key=(), **options):
        used.append([self.draws, *key, std, out.double().numpy().tobytes().hex()])
        return original(self, out, std, key, **options)

    GaussianNoise.add_normal_ = seen
    try:
        run = make_run(distributed=True)
        run.save(Path(folder) / "run.safetensors")
        for step in run:
            if step.number == 3:
                break
        other = adamas.load(Path(folder) / "run.safetensors", make_run(distributed=True))
        other.rule.param_groups[0]["lr"] *= 2
        for _ in other:
            pass
        return used, [repr(entry) for entry in other.ledger.entries]
    finally:
        GaussianNoise.add_normal_ = original


def wrapped_model(rank, how):
    model = make_model()
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    return make_run(distributed=True, model=model)


def save_and_resume(rank, folder, odd=False):
    """Four of six steps, a checkpoint that is written once, and a new run that goes on from it."""
    path = Path(folder) / f"odd{odd}.pt"
    run = make_run(distributed=True)
    for step in run:
        if step.number == 4:
            break
    written = []

    def write():
        written.append(True)
        torch.save(run.state_dict(), path)

    write_once(run.ranks, write)
    buffer = io.BytesIO()
    torch.save(run.state_dict(), buffer)
    later = make_run(distributed=True)
    state = torch.load(path)
    if odd and rank == 1:
        state["model"]["0.bias"] += 1e-9
    later.load_state_dict(state)
    return len(written), buffer.getvalue(), outcome(later)


def checkpoints_by_itself(rank, folder):
    """Five of six steps with automatic checkpoints and a data set's ledger; then the same call goes on."""
    options = {
        "checkpoint": Path(folder) / "run.safetensors",
        "checkpoint_every": 2,
        "resume": True,
        "data_ledger": Path(folder) / "data.ledger",
        "distributed": True,
    }
    run = make_run(**options)
    for step in run:
        if step.number == 5:
            break
    journal = Path(folder) / "run.safetensors.journal"
    records = (journal.stat().st_size - 48) // 64  # behind a header
    later = make_run(**options)
    return later.steps_done, records, outcome(later)


def journal_on_a_full_disk(rank, folder):
    """The journal of rank 0 cannot be written."""
    run = make_run(distributed=True)
    path = Path(folder) / "full.safetensors"
    run.save(path)
    write, os.pwrite = os.pwrite, _no_room
    try:
        for _ in run:
            pass
    finally:
        os.pwrite = write


def _no_room(*arguments):
    raise OSError("No space left on device")


def fail_to_write(rank):
    write_once(make_run(distributed=True).ranks, _no_disk)


def _no_disk():
    raise OSError("no space left")


def absolute(rank):
    run = make_run(distributed=True)
    return values(run.privatize(next(run.batches()), absolute=True).mean)


def check_device(rank, device):
    return Ranks.of(True).check_device(torch.device(device))


def raw_run(rank):
    return make_run(distributed=True, raw=True)


def end_or_hang(rank, folder, how, timeout):
    """Rank 1 is killed, or does not come back, in its fourth step; rank 0 keeps checkpoints."""
    path = Path(folder) / f"{how}.pt"
    calls = []

    def fatal_loss(model, batch):
        if calls and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return loss(model, batch)

    group = dist.new_group([0, 1], timeout=timedelta(seconds=timeout))
    run = make_run(distributed=group, loss=fatal_loss, engine="loop")
    start = time.monotonic()
    try:
        for step in run:
            write_once(run.ranks, lambda: torch.save(run.state_dict(), path))
            if step.number == 3:
                calls.append(True)
                start = time.monotonic()
    except adamas.DistributedError as error:
        return Failure(error), time.monotonic() - start, run.steps_done
