"""Assertions about the fast engine, and warnings of torch that its tests ignore."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adamas import UnsupportedError
from adamas.engines import Bookkeeping
from tests.support.one_by_one import Batch, assert_exact, ball, loss, norms

torch_warnings = pytest.mark.filterwarnings(
    "ignore:There is a performance drop:UserWarning",
    "ignore:Using padding='same' with even kernel:UserWarning",
    "ignore:None of the inputs have requires_grad:UserWarning",
    "ignore:enable_nested_tensor is True:UserWarning",
    "ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning",
)


def exact_or_refused(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] = loss) -> None:
    """Asserts that the fast engine refuses a model, or is exact on it."""
    try:
        Bookkeeping(model, loss, batch).norms(ball(model))
    except UnsupportedError:
        return
    assert_exact(model, batch, loss)


def refused(model: nn.Module, batch: Batch, *words: str, loss: Callable[..., Tensor] = loss) -> str:
    """Asserts a refusal that names all `words` and changes no parameter or buffer; returns its message."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedError) as caught:
        norms(model, batch, loss)
    message = str(caught.value)
    assert all(word in message for word in words), message
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"
    return message
