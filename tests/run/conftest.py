"""Fixtures that several tests of runs share."""

import pytest

from tests.support import distributed_ranks
from tests.support.small_runs import make_run
from tests.support.stopped_runs import stopped


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Starts two ranks, for all tests of a file that leave them alive."""
    made = distributed_ranks.Pool(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    """Saves a run after two of its six steps, and returns the path of the checkpoint."""
    file = tmp_path_factory.mktemp("checkpoint") / "run.safetensors"
    stopped(make_run(), 2).save(file)
    return file
