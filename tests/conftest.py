"""What all tests share: one profile for hypothesis, and torch's global settings put back."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# The same examples at every run: a failure is the code's, and anybody can repeat it.
settings.register_profile("adamas", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("adamas")


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """Restores what a test may change for the whole process, and starts it from a fixed seed."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small here, and threads that wait for each other are slow
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
