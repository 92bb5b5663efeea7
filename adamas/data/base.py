"""Data sets as tensors, with a public way to hold out a validation set."""

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas.loading import Rows


@dataclass(frozen=True)
class Data:
    """Training and test examples of a task, as `(input, label)` tensors.

    Attributes:
        name: Its name.
        train: The examples to train on. An input of NaN stands for an example without a known label.
        test: The examples to score.
        input_shape: The shape of an input.
        classes: The number of classes; 1 if the label is a number.
        target_bounds: For a label that is a number: what its values -1 and 1 stand for.
        left_out: Examples that were left out of `test` because they have no known label.
    """

    name: str
    train: TensorDataset | Rows
    test: TensorDataset | Rows
    input_shape: tuple[int, ...]
    classes: int
    target_bounds: tuple[float, float] | None = field(default=None, kw_only=True)
    left_out: int = field(default=0, kw_only=True)

    def with_validation(self, share: float = 0.1) -> "Data":
        """Returns the same task for choosing hyperparameters: a held-out part of `train` becomes `test`.

        Only the index of an example decides whether it is held out. So the choice is public and the same
        everywhere, and a smaller share is a subset of a larger one. The true test examples are not used. An
        accuracy on held-out examples has no noise: a run protects the examples that it trains on, not these.

        Args:
            share: Share of the training examples to hold out.

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
        return replace(
            self,
            name=f"{self.name}/validation",
            train=_take(self.train, order[held_out:]),
            test=_take(self.train, order[:held_out]),
        )

    def with_known_test_labels(self) -> "Data":
        """Returns the same task without the test examples that have no known label."""
        assert isinstance(self.test, TensorDataset)
        known = self.test.tensors[0].isfinite().all(1)
        test = TensorDataset(*(values[known] for values in self.test.tensors))
        return replace(self, test=test, left_out=int((~known).sum()))


def _public_order(size: int) -> Tensor:
    """Returns the numbers below `size`, sorted by their SHA-256."""
    digests = [hashlib.sha256(b"validation:%d" % index).digest() for index in range(size)]
    return torch.tensor(sorted(range(size), key=digests.__getitem__))


def _take(examples: TensorDataset | Rows, which: Tensor) -> TensorDataset:
    assert isinstance(examples, TensorDataset)
    chosen = which.sort().values
    return TensorDataset(*(values[chosen] for values in examples.tensors))
