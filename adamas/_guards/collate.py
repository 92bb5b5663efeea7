"""Checks that a collate_fn keeps the examples of a batch apart."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import default_collate

from adamas._guards.kept_values import same_bits
from adamas._guards.memory import Memory
from adamas._guards.padding import Padding, Rows, Sizes, padded_and_alone, padding_of, sizes_of
from adamas._guards.tokenizers import put_back
from adamas._nests import check_rows, named_leaves, named_tensors
from adamas._streams import generator_state, global_generators, global_randomness, set_generator_state
from adamas.errors import UnsupportedError

__all__ = [
    "MOST_EXAMPLES",
    "Apart",
    "Collated",
    "Rows",
    "Sizes",
    "check_collate",
    "is_own",
    "padded_and_alone",
    "padding_of",
]

MOST_EXAMPLES = 256
"""How many examples `check_collate` should get at most, to stay cheap."""

# Batches that are compared, each with its own random state: half of them of all examples, half of a quarter.
_BATCHES = 8
# Random states in which one example alone must always give the same result.
_STATES = 64

_MIXED = (
    "collate_fn mixes the examples of a batch: an example's row of {name} changes when {case}, "
    "so no clipping bounds its influence. Let collate_fn stack the examples in "
    "their order, padded at the ends of axes by one constant value, and nothing else: no mixing, no repeated "
    "rows, no statistics over the batch. Put changes of single examples into the data set's __getitem__."
)
_ALONE = "the example is alone in its batch"
_BESIDE = "the other examples change, with the same random values"

_OWN_GENERATOR = (
    " If it makes its own generator at its first batch, as collators of transformers do with seed=, leave "
    "out the seed: the run seeds torch's generator for each batch."
)

Collate = Callable[[list[Any]], Any]


class _Loads(Protocol):
    """The part of a loader that the check needs."""

    @property
    def dataset(self) -> Any:
        """The data set."""

    def compared(self) -> "Apart | None":
        """Returns the collate_fn, which compares each batch."""


class Collated:
    """A batch or the reason for refusing it, and the lengths of its rows without padding."""

    __slots__ = ("_data", "_refusal", "sizes")

    def __init__(self, data: Any, sizes: Sizes, refusal: UnsupportedError | None = None) -> None:
        self._data, self.sizes, self._refusal = data, sizes, refusal

    @property
    def data(self) -> Any:
        """The batch. A refusal is raised here, since a worker process must not raise."""
        if self._refusal is not None:
            raise self._refusal
        return self._data


class Apart:
    """Wraps the user's collate_fn, and compares each batch before it is used.

    - Each row must be, bit for bit, what collate_fn makes of its example alone, except for padding by one
      value at the ends of axes, or at their starts.
    - A collate_fn that is random for one example cannot be compared like this. Instead half of the examples,
      another half in each batch, are exchanged for others under the same random values: the rows of the rest
      must not change. This check works only if the exchange keeps the number of draws, and it never
      exchanges the longest examples.
    - Nothing that collate_fn reaches may change, except random generators: it would carry one batch into
      the next, or into the loss. What a tokenizer changes at each use is restored.

    Args:
        collate: The collate_fn.
        dataset: The data set, which may cache what it has read.
    """

    def __init__(self, collate: Collate, dataset: object = None) -> None:
        self.collate = collate
        self._dataset = dataset
        self._memory: Memory | None = None
        self._random = False
        self._pads: dict[str, Padding] = {}
        self._turn = 0

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_memory": None}

    def __call__(self, examples: list[Any]) -> Collated:
        """Collates the examples, possibly in a worker process."""
        self._turn += 1
        try:
            return self.compare(examples, [self._turn % _bits(len(examples))])
        except UnsupportedError as error:
            return Collated(None, {}, error)

    def compare(self, examples: list[Any], bits: Iterable[int]) -> Collated:
        """Collates the examples, and compares the rows.

        Args:
            examples: The examples.
            bits: The bits of a row's number by which the examples are halved, if collate_fn is random.

        Raises:
            UnsupportedError: If a row depends on the other examples, or if collate_fn changes any state.
        """
        if self._memory is None or not self._memory.renew():
            roots = {"collate_fn": self.collate}
            self._memory = Memory(roots, known=[self._dataset], long=False, draws=True)
        generators = [*global_generators(), *self._memory.generators] if self._random else []
        before = [generator_state(generator) for generator in generators]
        together = self._collated(examples)
        try:
            check_rows(together, len(examples))
        except (UnsupportedError, ValueError):
            return Collated(together, {})  # refused later, by its rows
        after = [generator_state(generator) for generator in generators]
        self._check_memory()
        batches = [self._collated([example]) for example in examples] if len(examples) > 1 else [together]
        alone = [dict(named_leaves(batch)) for batch in batches]
        if not self._random:
            for i, name in _differences(together, alone, self._pads):
                if not _is_random(self._collated, examples[i]):
                    raise UnsupportedError(_MIXED.format(name=name, case=_ALONE))
                self._random = True
                return self.compare(examples, bits)
        try:
            for bit in bits if self._random else ():
                self._exchange(examples, together, alone, bit, generators, before, after)
        finally:
            _set_states(generators, after)
        self._check_memory()
        return Collated(together, sizes_of(together, alone, {} if self._random else self._pads))

    def _collated(self, examples: Sequence[Any]) -> Any:
        # A collate_fn may take its examples apart: give it containers of its own.
        assert self._memory is not None
        with put_back(self._memory.tokenizers):
            return self.collate([copy.copy(e) if isinstance(e, dict | list) else e for e in examples])

    def _check_memory(self) -> None:
        assert self._memory is not None
        name = self._memory.change()
        if name is not None:
            raise UnsupportedError(
                f"collate_fn changes {name!r}, which can carry a batch into the next one or into the loss, "
                "where no clipping bounds it. Remove the update, and return computed values in the batch."
                + (_OWN_GENERATOR if name.endswith(".generator") else "")
            )

    def _exchange(
        self,
        examples: list[Any],
        together: Any,
        alone: list[dict[str, Any]],
        bit: int,
        generators: list[Any],
        before: list[bytes],
        after: list[bytes],
    ) -> None:
        """Exchanges half of the examples, then the other half, and compares the rows of the rest."""
        longest = _longest(alone)
        for side in (0, 1):
            kept = [i for i in range(len(examples)) if i >> bit & 1 == side]
            if not kept or len(kept) == len(examples):
                continue
            stay = sorted({*kept, *longest})
            others = [
                examples[i] if i in stay else examples[kept[i % len(kept)]] for i in range(len(examples))
            ]
            _set_states(generators, before)
            beside = self._collated(others)
            if [generator_state(generator) for generator in generators] != after:
                continue  # the others draw more or fewer random values
            rows, theirs = dict(named_tensors(together)), dict(named_tensors(beside))
            shapes = [{name: x.shape for name, x in tensors.items()} for tensors in (rows, theirs)]
            if shapes[0] != shapes[1]:
                continue
            for name, x in rows.items():
                if not same_bits(x[stay], theirs[name][stay]):
                    raise UnsupportedError(_MIXED.format(name=name, case=_BESIDE))


def check_collate(loader: _Loads, indices: Sequence[int]) -> None:
    """Raises if the loader's collate_fn mixes or repeats examples.

    It compares as `Apart` does, on several batches, each with its own random state. For a random collate_fn
    it uses enough halves to exchange each example while any other one stays.

    Args:
        loader: The loader of a run.
        indices: The examples of the batch that is checked.

    Raises:
        UnsupportedError: If a row depends on the other examples.
    """
    apart = loader.compared()
    if apart is None or not len(indices):
        return
    examples = [loader.dataset[int(i)] for i in indices]
    for state in range(_BATCHES):
        quarter = range(state % 4, len(examples), 4)
        rows = quarter if state >= _BATCHES // 2 and len(quarter) else range(len(examples))
        with global_randomness(state):
            apart.compare([examples[row] for row in rows], range(_bits(len(rows))))


def _bits(n: int) -> int:
    """Returns how many bits tell rows apart."""
    return max(1, (n - 1).bit_length())


def is_own(collate: Collate | None) -> bool:
    """Tells whether a collate_fn is the user's own."""
    return collate is not None and collate is not default_collate


def _longest(alone: list[dict[str, Any]]) -> set[int]:
    """Finds the examples that decide how long a batch is, along each axis of each part."""
    found: set[int] = set()
    parts = [[x.shape[1:] for x in leaves.values() if isinstance(x, Tensor)] for leaves in alone]
    for shapes in zip(*parts, strict=False):
        for lengths in zip(*shapes, strict=False):
            if min(lengths) != max(lengths):
                found.add(lengths.index(max(lengths)))
    return found


def _set_states(generators: list[Any], states: list[bytes]) -> None:
    for generator, state in zip(generators, states, strict=True):
        set_generator_state(generator, state)


def _is_random(collate: Callable[[Sequence[Any]], Any], example: Any) -> bool:
    """Tells whether collate_fn makes different batches of one example."""

    def collated(state: int) -> Any:
        with global_randomness(state):
            return collate([example])

    first = [dict(named_leaves(collated(0)))]
    states = range(1, _STATES)
    return any(next(_differences(collated(state), first, {}), None) is not None for state in states)


def _differences(
    together: Any, alone: list[dict[str, Any]], pads: dict[str, Padding]
) -> Iterator[tuple[int, str]]:
    """Yields rows of the batch that differ from those of the examples alone, with the names of the parts."""
    rows = dict(named_leaves(together))
    for name in dict.fromkeys(name for leaves in (rows, *alone) for name in leaves):
        a, parts = rows.get(name), [leaves.get(name) for leaves in alone]
        tensors = [b for b in parts if isinstance(b, Tensor) and b.dim()]
        if not isinstance(a, Tensor) or len(tensors) < len(parts):
            yield from ((i, name) for i, b in enumerate(parts) if a is not None or b is not None)
            continue
        padding = pads.setdefault(name, Padding())
        if not padding.agrees_on_all(a, tensors):
            yield from ((i, name) for i, b in enumerate(tensors) if not padding.agrees(a[i : i + 1], b))
    order = [name for name, value in rows.items() if value is not None]
    for i, leaves in enumerate(alone):  # the loss may read the parts in their order
        if len(order) > 1 and [name for name, value in leaves.items() if value is not None] != order:
            yield i, order[0]
