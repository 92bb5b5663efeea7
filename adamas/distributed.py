r"""Data-parallel training: the processes of one run, on top of `torch.distributed`.

The draw of a step is a function of the seed, which all ranks share, and is dealt out to them like cards: with
W ranks, rank r takes places r, r + W, r + 2W, ... of it. The ranks' clipped sums add up to the sum of the
whole draw, so the sensitivity is 1 as in one process, and the event is the same.

    each rank   clips and sums its share; then all ranks check in with each other: if one failed, all raise
    rank 0      receives the total of the sums, adds the noise once, and sends the release to the others

So the noise is exactly z, all ranks have the same release bit for bit, and only rank 0 holds the total
without noise. Parameters and geometry are compared at each step, so that ranks cannot drift apart unnoticed.
"""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adamas._streams import Seed
from adamas._version import __version__
from adamas.errors import DistributedError, UnsupportedError

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others, where this module sets up the process group."""

_MESSAGE_BYTES = 4096  # fixed size of a rank's message at a roll call
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_REMEDIES = {
    "dataset_size": "Give every rank the whole data set: the run deals out the examples itself.",
    "seed": "Give every rank the same seed, or None for a secret one that they share.",
    "model's values": "Build the model after the same torch.manual_seed on every rank, or load one file.",
    "parameters and geometry": (
        "Change the model, the rule or the learning rate on all ranks alike, and use the same hardware."
    ),
}


class Ranks:
    """The processes of one data-parallel run, as one of them sees them.

    Attributes:
        group: The process group.
        rank: The number of this process, from 0.
        world_size: How many there are.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("Expected distributed= to be a process group that this process belongs to.")
        pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
        self._backends = {device: backend for device, backend in pairs}
        self._device = torch.device("cpu" if "cpu" in self._backends else "cuda")
        self._answered = False

    @classmethod
    def of(cls, distributed: "Distributed") -> "Ranks | None":
        """Returns the ranks for an argument `distributed=`; None for a run in one process."""
        if distributed is False or isinstance(distributed, Ranks):
            return distributed or None
        if isinstance(distributed, dist.ProcessGroup):
            return cls(distributed)
        if distributed is not True:
            raise TypeError(
                f"Expected distributed={distributed!r} to be True, False or a process group of "
                "torch.distributed of which this process is a member."
            )
        if not dist.is_initialized():
            missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in os.environ]
            if missing:
                raise RuntimeError(
                    f"distributed=True needs a process group, and {', '.join(missing)} is not in the "
                    "environment. Start the script with torchrun --nproc-per-node N, or call "
                    "torch.distributed.init_process_group(...) first."
                )
            dist.init_process_group(timeout=TIMEOUT)  # gloo for tensors on CPUs, NCCL for those on GPUs
        group = dist.group.WORLD
        assert group is not None
        return cls(group)

    def __reduce__(self) -> Any:
        raise TypeError("The ranks of a run cannot be copied or pickled: they are processes.")

    @property
    def is_writer(self) -> bool:
        """Whether this process draws the noise, writes the files and shows the progress."""
        return self.rank == 0

    def check_device(self, device: torch.device) -> None:
        """Raises if the ranks cannot exchange sums on a device."""
        backend = self._backends.get(device.type)
        if backend is None or (backend == "gloo" and device.type != "cpu"):
            raise UnsupportedError(
                f"The process group of distributed= has {backend or 'no backend'} for parameters on "
                f"{device.type}. Use gloo for CPUs and nccl for CUDA devices, or leave init_process_group to "
                "adamas, which sets up both."
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Makes an error on one rank an error on all. The block must make one roll call on every rank."""
        self._answered = False
        try:
            yield
        except Exception as error:
            if not self._answered:
                with suppress(DistributedError):  # without listeners the error still says what happened
                    self._exchange({"failed": type(error).__name__})
            raise

    def roll_call(self, doing: str, facts: Mapping[str, object], value: float = 0.0) -> list[float]:
        """Waits for all ranks, and raises on all unless they do the same with the same facts.

        Args:
            doing: What the ranks are about to do, for error messages.
            facts: Values that must be the same on all ranks. Only digests are sent; errors show no value.
            value: A number of this rank.

        Returns:
            The numbers of all ranks, in their order.
        """
        known = {name: _digest(repr(fact).encode()) for name, fact in facts.items()}
        said = self._exchange({"doing": doing, "facts": known, "value": value})
        for rank, other in enumerate(said):
            if "failed" in other:
                raise DistributedError(
                    f"Rank {rank} of {self.world_size} failed with {other['failed']} before all could go on "
                    f"with {doing}. Its own error says why; nothing was released."
                )
        for rank, other in enumerate(said):
            if other["doing"] != said[0]["doing"]:
                raise DistributedError(
                    f"Expected all ranks to do the same, but rank 0 is at {said[0]['doing']} and rank {rank} "
                    f"at {other['doing']}. Call the run alike on every rank."
                )
            names = [*said[0]["facts"], *(name for name in other["facts"] if name not in said[0]["facts"])]
            for name in names:
                if said[0]["facts"].get(name) != other["facts"].get(name):
                    raise DistributedError(
                        f"Expected the same {name} on all ranks at {doing}, but rank 0 and rank {rank} "
                        "differ. " + _REMEDIES.get(name, f"Give every rank the same {name}.")
                    )
        return [other["value"] for other in said]

    def share_seed(self, seed: Seed) -> None:
        """Gives all ranks the secret seed of rank 0. It is neither shown nor saved."""
        if seed.given is None:
            seed.replace(self.from_writer)

    def sum_on_writer_(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor of rank 0 by the sum over all ranks. On other ranks it becomes undefined."""
        for tensor in tensors:
            self._call(dist.reduce, tensor, group_dst=0)

    def send_from_writer_(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by that of rank 0."""
        for tensor in tensors:
            self._call(dist.broadcast, tensor, group_src=0)

    def from_writer(self, data: bytes) -> bytes:
        """Returns the data of rank 0. All ranks must pass equally many bytes."""
        tensor = self._as_tensor(data)
        self.send_from_writer_([tensor])
        return _as_bytes(tensor)

    def _as_tensor(self, data: bytes) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)

    def _exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends a message to all ranks, and returns those of all."""
        self._answered = True
        text = json.dumps(message).encode()
        assert len(text) <= _MESSAGE_BYTES
        mine = self._as_tensor(text.ljust(_MESSAGE_BYTES))
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        self._call(dist.all_gather, gathered, mine)
        return [json.loads(_as_bytes(said)) for said in gathered]

    def _call(self, collective: Callable[..., Any], *args: Any, **options: Any) -> None:
        try:
            collective(*args, group=self.group, **options)
        except Exception as error:
            raise DistributedError(
                f"Rank {self.rank} of {self.world_size} cannot reach the others: one has ended, or did not "
                "answer within the process group's timeout. Start all ranks again from the last checkpoint."
            ) from error


Distributed: TypeAlias = bool | dist.ProcessGroup | Ranks
"""Values of `make_private(distributed=...)`."""


@contextmanager
def together(ranks: Ranks | None) -> Iterator[None]:
    """Applies `Ranks.together`; does nothing for a run in one process."""
    if ranks is None:
        yield
        return
    with ranks.together():
        yield


def raises_together(make: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function with an argument `distributed=`: an error on one rank becomes an error on all."""

    @functools.wraps(make)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        ranks = Ranks.of(kwargs.get("distributed", False))  # type: ignore[arg-type]
        if ranks is None:
            return make(*args, **kwargs)
        kwargs["distributed"] = ranks
        with ranks.together():
            return make(*args, **kwargs)

    return wrapped


def write_once(ranks: Ranks | None, write: Callable[[], None]) -> None:
    """Calls a function on rank 0 only. The others wait until it returns, and raise if it raises.

    Every rank must call this. Without ranks the function is just called.
    """
    with together(ranks):
        if ranks is None or ranks.is_writer:
            write()
        if ranks is not None:
            ranks.roll_call("writing a file", {})


def told_by_writer(ranks: Ranks | None, ask: Callable[[], bytes]) -> bytes:
    """Calls a function on rank 0 only, and returns its result on all ranks. They raise if it raises."""
    said = [b""]

    def listen() -> None:
        said[0] = ask()

    write_once(ranks, listen)
    if ranks is None:
        return said[0]
    size = int.from_bytes(ranks.from_writer(len(said[0]).to_bytes(8, "big")), "big")
    return ranks.from_writer(said[0] if ranks.is_writer else bytes(size)) if size else b""


def rank_place(rank: int) -> tuple[int, ...]:
    """Returns what a rank appends to the place of a stream. Rank 0 has the streams of a single process."""
    return (rank,) if rank else ()


def training_facts(model: nn.Module, rule: torch.optim.Optimizer) -> dict[str, object]:
    """Returns what the ranks of a run must have in common besides its settings."""
    tensors = model.state_dict()
    saved = rule.state_dict()
    return {
        "versions of adamas and torch": (__version__, torch.__version__),
        "model": [
            (name, tuple(t.shape), str(t.dtype)) for name, t in tensors.items() if isinstance(t, Tensor)
        ],
        "model's values": fingerprint(tensors.values()),
        "trainable parameters": [name for name, p in model.named_parameters() if p.requires_grad],
        "rule's options": fingerprint([saved["param_groups"]]),
        "rule's state": fingerprint([saved["state"]]),
    }


def fingerprint(values: Iterable[object]) -> str:
    """Computes a digest of the bits of tensors and numbers in order, also within lists and mappings.

    Different bits almost always give a different digest: for speed it covers sums of the bits and of their
    squares. Other objects count by their type only.
    """
    parts: list[object] = []
    sums: list[Tensor] = []
    for value in _leaves(values):
        if not isinstance(value, Tensor):
            parts.append(value)
            continue
        parts.append((tuple(value.shape), str(value.dtype)))
        real = torch.view_as_real(value) if value.is_complex() else value
        bits = real.detach().view(_INTEGERS[real.element_size()])
        sums += [bits.sum(dtype=torch.int64).cpu(), (bits * bits).sum(dtype=torch.int64).cpu()]
    return _digest(repr((parts, torch.stack(sums).tolist() if sums else [])).encode())


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield len(value)
        for key, inner in value.items():
            yield from (*_leaves(key), *_leaves(inner))
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes | Tensor):
        yield type(value).__name__
        for inner in value:
            yield from _leaves(inner)
    elif value is None or isinstance(value, str | bytes | int | float | complex | Tensor):
        yield value
    else:
        yield type(value).__name__


def _as_bytes(tensor: Tensor) -> bytes:
    data: bytes = tensor.cpu().numpy().tobytes()
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
