"""Blocks of parameters that share one second moment.

The average over a block has less noise than a coordinate, and blocks are few enough to be sent. They follow
the architecture. In the query, key and value of an attention, the rows of each head are a block. In any
other known layer, weight and bias are one block. Every other tensor is a block of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adamas.engines import trainable_parameters

# Layers whose weight and bias form one block.
_LAYERS = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.modules.conv._ConvNd,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.modules.instancenorm._InstanceNorm,
)
# Names that attentions give to the number of their heads, and to their projections.
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")
_PROJECTIONS = (
    "query",
    "key",
    "value",
    "q_proj",
    "k_proj",
    "v_proj",
    "q_lin",
    "k_lin",
    "v_lin",
    "q",
    "k",
    "v",
)
_JOINT_PROJECTIONS = ("qkv", "in_proj", "Wqkv")


@dataclass(frozen=True)
class Block:
    """Coordinates that share a second moment.

    Attributes:
        name: The name of the block.
        coordinates: Number of coordinates.
    """

    name: str
    coordinates: int


class Blocks(Sequence[Block]):
    """A partition of the trainable parameters of a model, in blocks.

    Args:
        model: The model.
        index: Name of a parameter -> the block number of each coordinate: a tensor of integers whose shape
            broadcasts to the parameter's. Every block from 0 to the highest must have a coordinate.
        names: Names of the blocks; None numbers them.

    Example:
        >>> blocks = Blocks.of(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
        >>> [(block.name, block.coordinates) for block in blocks]
        [('0', 9), ('1', 6)]
        >>> blocks.expanded(torch.tensor([5.0, 7.0]))["1.bias"]
        tensor([7., 7., 7.])
    """

    def __init__(
        self, model: nn.Module, index: Mapping[str, Tensor], names: Sequence[str] | None = None
    ) -> None:
        self._shapes = {name: p.shape for name, p in trainable_parameters(model).items()}
        if index.keys() != self._shapes.keys():
            wrong = ", ".join(sorted(index.keys() ^ self._shapes.keys()))
            raise ValueError(
                f"Expected index to have the model's trainable parameters; missing or unknown: {wrong}."
            )
        for name, shape in self._shapes.items():
            part = index[name]
            if part.is_floating_point() or part.is_complex() or (part.numel() and int(part.min()) < 0):
                raise ValueError(f"Expected index[{name!r}] to hold whole numbers from 0.")
            if part.dim() > len(shape) or not _broadcasts(part.shape, shape):
                raise ValueError(
                    f"Expected index[{name!r}] of a shape that broadcasts to {tuple(shape)}, got "
                    f"{tuple(part.shape)}."
                )
        self._index = {name: index[name].long() for name in self._shapes}
        count = 1 + max((int(part.max()) for part in self._index.values() if part.numel()), default=-1)
        ones = {name: torch.ones(()).expand(shape) for name, shape in self._shapes.items()}
        self._sizes = torch.zeros(count, dtype=torch.float64)
        self._add_sums(self._sizes, ones)
        empty = (self._sizes == 0).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"Expected every block to have a coordinate; blocks without one: {empty}.")
        self._names = [str(number) for number in range(count)] if names is None else list(names)
        if len(self._names) != count:
            raise ValueError(f"Expected names for {count} blocks, got {len(self._names)}.")

    @classmethod
    def of(cls, model: nn.Module) -> "Blocks":
        """Makes blocks from a model's architecture."""
        shapes = {name: p.shape for name, p in trainable_parameters(model).items()}
        names: list[str] = []
        index: dict[str, Tensor] = {}

        def add(title: str, *parameters: str, rows: Sequence[str] = ("",)) -> None:
            """Adds a block for each of the equal shares of the parameters' rows."""
            numbers = torch.arange(len(names), len(names) + len(rows))
            names.extend(f"{title} {row}".rstrip() for row in rows)
            for name in parameters:
                shape = shapes[name]
                index[name] = (
                    numbers[0]
                    if len(rows) == 1
                    else numbers.repeat_interleave(shape[0] // len(rows)).view(-1, *[1] * (len(shape) - 1))
                )

        for name, module in model.named_modules():
            prefix = f"{name}." if name else ""
            for title, parameters, rows in _projections(module):
                free = [prefix + key for key in parameters if prefix + key in shapes.keys() - index.keys()]
                if free and all(shapes[key][0] % len(rows) == 0 for key in free):
                    add(prefix + title, *free, rows=rows)
            own = [prefix + key for key, _ in module.named_parameters(recurse=False)]
            free = [key for key in own if key in shapes.keys() - index.keys()]
            if free and isinstance(module, _LAYERS):
                add(name or "model", *free)
            else:
                for key in free:
                    add(key, key)
        return cls(model, index, names)

    @classmethod
    def coordinates(cls, model: nn.Module) -> "Blocks":
        """Makes a block of each coordinate: second moments as in Adam, which doubles an upload."""
        start, index = 0, {}
        for name, p in trainable_parameters(model).items():
            index[name] = torch.arange(start, start + p.numel()).view(p.shape)
            start += p.numel()
        return cls(model, index)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> Block:  # type: ignore[override]
        return Block(self._names[number], int(self._sizes[number]))

    def __iter__(self) -> Iterator[Block]:
        return (self[number] for number in range(len(self)))

    def means(self, values: Mapping[str, Tensor]) -> Tensor:
        """Averages values in the shapes of the parameters over each block, and keeps their type."""
        sums = torch.zeros_like(self._sizes)
        self._add_sums(sums, values)
        dtypes = [value.dtype for value in values.values()]
        return (sums / self._sizes).to(dtypes[0] if dtypes else torch.float32)

    def expanded(self, means: Tensor) -> dict[str, Tensor]:
        """Gives each coordinate of each parameter the value of its block."""
        if means.shape != self._sizes.shape:
            raise ValueError(f"Expected {len(self)} numbers, one per block, got {tuple(means.shape)}.")
        return {name: means[self._index[name]].expand(shape).clone() for name, shape in self._shapes.items()}

    def _add_sums(self, sums: Tensor, values: Mapping[str, Tensor]) -> None:
        for name, part in self._index.items():
            within = values[name].double().sum_to_size(part.shape)
            sums.index_add_(0, part.reshape(-1), within.reshape(-1))


def _projections(module: nn.Module) -> Iterator[tuple[str, list[str], list[str]]]:
    """Finds the projections of an attention: their names, parameters, and names for shares of their rows."""
    found = [heads for heads in (getattr(module, name, None) for name in _HEADS) if type(heads) is int]
    if not found:
        return
    heads = [f"head {number}" for number in range(found[0])]
    joint = [f"{part} {head}" for part in ("query", "key", "value") for head in heads]
    own = [name for name, _ in module.named_parameters(recurse=False) if name.startswith("in_proj_")]
    if own:
        yield "in_proj", own, joint
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name in (*_PROJECTIONS, *_JOINT_PROJECTIONS):
            parameters = [f"{name}.{key}" for key, _ in child.named_parameters(recurse=False)]
            yield name, parameters, heads if name in _PROJECTIONS else joint


def _broadcasts(part: torch.Size, shape: torch.Size) -> bool:
    return all(mine in (1, size) for mine, size in zip(reversed(part), reversed(shape), strict=False))
