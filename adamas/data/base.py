"""What a data set is, and how a validation set is held out of its training examples."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas import _validate


@dataclass(frozen=True)
class Data:
    """Training and test examples of a classification task, as `(input, label)` tensors."""

    name: str
    train: TensorDataset
    test: TensorDataset
    input_shape: tuple[int, ...]
    classes: int

    def with_validation(self, share: float = 0.1) -> "Data":
        """The same task for choosing hyperparameters: a part of `train` is held out, and is `test`.

        Which examples are held out follows from their number in the training set and from nothing else, so
        that it is public, the same everywhere, and a smaller share is a part of a larger one. The true test
        examples take no part. An accuracy on held-out examples has no noise: a run protects those that it
        trains on, not these.

        Args:
            share: Which share of the training examples to hold out.

        Returns:
            A data set with `/validation` added to its name.

        Raises:
            ValueError: If the share leaves no example for training or none for validation.
        """
        _validate.probability(share=share)
        size = len(self.train)
        held_out = round(share * size)
        if not 0 < held_out < size:
            raise ValueError(
                f"Expected share={share!r} to leave examples on both sides, but {held_out} of {size} "
                "would be held out."
            )
        order = _public_order(size)
        return Data(
            name=f"{self.name}/validation",
            train=_take(self.train, order[held_out:]),
            test=_take(self.train, order[:held_out]),
            input_shape=self.input_shape,
            classes=self.classes,
        )


def _public_order(size: int) -> Tensor:
    """The numbers below `size`, in the order of their SHA-256."""
    digests = [hashlib.sha256(b"validation:%d" % index).digest() for index in range(size)]
    return torch.tensor(sorted(range(size), key=digests.__getitem__))


def _take(examples: TensorDataset, which: Tensor) -> TensorDataset:
    chosen = which.sort().values
    return TensorDataset(*(values[chosen] for values in examples.tensors))
