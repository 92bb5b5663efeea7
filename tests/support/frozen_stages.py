"""A task whose model has a frozen stage: a tiny sentence encoder in front of a classifier of texts."""

import torch
from torch.utils.data import TensorDataset

from adamas.data import Data
from adamas.models import minilm
from tests.support.small_models import SMALL as SIZES

__all__ = ["SIZES", "task"]


def task(seed=0, examples=150):
    """Makes the model, and texts of different lengths. Equal arguments give equal results in any process."""
    torch.manual_seed(seed)
    model = minilm(None, 3, sizes=SIZES)

    def split(n):
        ids = torch.randint(1, 50, (n, 9))
        return TensorDataset(
            torch.where(torch.arange(9) < 3 + torch.arange(n)[:, None] % 7, ids, 0), ids[:, 0] % 3
        )

    return model, Data("texts", split(examples), split(20), (9,), 3)
