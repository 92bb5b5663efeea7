"""One record moves the sum by at most 1, even if the longest example determines the padding of all."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from adamas import UnsupportedError
from adamas.engines import ENGINES
from tests.support.promised_runs import LIMIT, N, influence, made


class Sequences(Dataset[Any]):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        draw = torch.Generator().manual_seed(i)
        return torch.randn(1 + i % 5, 4, generator=draw), i % 3


def padded(examples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    x = nn.utils.rnn.pad_sequence([x for x, _ in examples], batch_first=True)
    lengths = torch.tensor([len(x) for x, _ in examples])
    return {"x": x, "lengths": lengths, "y": torch.tensor([y for _, y in examples])}


def padded_to_one_length(examples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    batch = padded(examples)
    return batch | {"x": F.pad(batch["x"], (0, 0, 0, 5 - batch["x"].shape[1]))}


def mean_with_padding(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"]).mean(1), batch["y"], reduction="none")


def mean_without_padding(model: nn.Module, batch: Any) -> Tensor:
    h = model(batch["x"])
    mask = torch.arange(h.shape[1]) < batch["lengths"][:, None]
    mean = (h * mask[..., None]).sum(1) / batch["lengths"][:, None]
    return F.cross_entropy(mean, batch["y"], reduction="none")


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_loss_that_depends_on_the_longest_example_is_refused(engine):
    with pytest.raises(UnsupportedError, match="padded"):
        made(nn.Linear(4, 3), Sequences(), mean_with_padding, collate_fn=padded, engine=engine)


@pytest.mark.parametrize(
    ("loss", "collate"), [(mean_without_padding, padded), (mean_with_padding, padded_to_one_length)]
)
def test_padding_that_the_loss_ignores_is_bounded(loss, collate):
    run = made(nn.Linear(4, 3), Sequences(), loss, collate_fn=collate)
    assert max(influence(run, record) for record in (3, 4, 9)) <= LIMIT
