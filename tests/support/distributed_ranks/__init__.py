"""Two processes with a gloo group between them, and what the tests of `adamas.distributed` run on them.

`Pool` starts the processes. A function whose first argument is `rank` runs in both, and returns plain data or
NumPy arrays.
"""

from tests.support.distributed_ranks.failures import (
    check_device,
    construct,
    construct_unsupported,
    drift,
    end_or_hang,
    fail_in_the_loss,
    raw_run,
    wrapped_model,
)
from tests.support.distributed_ranks.pool import WORLD, Failure, Pool
from tests.support.distributed_ranks.runs import (
    SEED,
    N,
    loss,
    make_data,
    make_model,
    make_rule,
    make_run,
    outcome,
    values,
    vector,
)
from tests.support.distributed_ranks.saving import (
    checkpoints_by_itself,
    fail_to_write,
    journal_on_a_full_disk,
    save_and_resume,
)
from tests.support.distributed_ranks.training import (
    Recording,
    absolute,
    examples_seen,
    model_with_equal_values,
    noise_only,
    train,
    train_in_a_group,
    used_keys,
    watched,
)

__all__ = [
    "SEED",
    "WORLD",
    "Failure",
    "N",
    "Pool",
    "Recording",
    "absolute",
    "check_device",
    "checkpoints_by_itself",
    "construct",
    "construct_unsupported",
    "drift",
    "end_or_hang",
    "examples_seen",
    "fail_in_the_loss",
    "fail_to_write",
    "journal_on_a_full_disk",
    "loss",
    "make_data",
    "make_model",
    "make_rule",
    "make_run",
    "model_with_equal_values",
    "noise_only",
    "outcome",
    "raw_run",
    "save_and_resume",
    "train",
    "train_in_a_group",
    "used_keys",
    "values",
    "vector",
    "watched",
    "wrapped_model",
]
