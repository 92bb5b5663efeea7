"""Settings for all tests: one hypothesis profile, torch's global settings, and what counts as slow."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Every run draws the same examples, so that a failure can be repeated.
settings.register_profile("adamas", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("adamas")

collect_ignore_glob = ["support/*", "reference/*"]  # no tests, and no examples to run

torch.set_num_threads(1)  # tensors are small here, and threads that wait for each other are slow

# A test with one of these marks is slow as well: `-m "not slow"` leaves it out.
SLOW = {"kills", "ray", "browser", "audits", "subprocess", "whole_models", "mnist", "data"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what has a mark that implies it."""
    for item in items:
        if SLOW & {mark.name for mark in item.iter_markers()}:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """Seeds torch, and restores its default dtype and number of threads after the test."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


@pytest.fixture
def plots() -> None:
    """Skips the test where matplotlib is not installed."""
    pytest.importorskip("matplotlib")
