"""Fixtures that tests of engines share."""

import pytest
import torch

from tests.support.row_map_calls import calls

__all__ = ["calls"]


@pytest.fixture
def float64() -> None:
    """Makes float64 the default dtype; the fixture `torch_settings` restores the previous one."""
    torch.set_default_dtype(torch.float64)
