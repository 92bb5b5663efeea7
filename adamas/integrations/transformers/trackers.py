"""Refuses trackers that upload whole checkpoints, if these hold a given seed."""

import os
from collections.abc import Iterable

from transformers import TrainerCallback

from adamas.errors import UnsupportedError
from adamas.integrations.transformers.privacy import Privacy

_YES = frozenset({"true", "1", "on", "yes"})

UPLOADS = {
    "WandbCallback": ("WANDB_LOG_MODEL", "false", frozenset({"checkpoint"})),
    "MLflowCallback": ("HF_MLFLOW_LOG_ARTIFACTS", "false", _YES),
    "DagsHubCallback": ("HF_DAGSHUB_LOG_ARTIFACTS", "false", _YES),
    "CometCallback": ("COMET_LOG_ASSETS", "false", _YES),
    "DVCLiveCallback": ("HF_DVCLIVE_LOG_MODEL", "false", frozenset({"all"})),
    "ClearMLCallback": ("CLEARML_LOG_MODEL", "true", _YES),
}
"""Callback of transformers -> environment variable, its default, and values that upload whole checkpoints."""


def check_trackers(callbacks: Iterable[TrainerCallback], privacy: Privacy) -> None:
    """Raises if a tracker uploads checkpoints that hold a given seed, which removes the noise.

    Args:
        callbacks: The callbacks of a trainer.
        privacy: Gives the seed.
    """
    if privacy.seed is None:
        return
    for kind in (kind for one in callbacks for kind in type(one).__mro__):
        variable, default, uploading = UPLOADS.get(kind.__name__, ("", "", frozenset()))
        value = os.environ.get(variable, default)
        if value.lower() in uploading:
            raise UnsupportedError(
                f"Expected no seed in Privacy with {variable}={value!r}: the checkpoints that "
                f"{kind.__name__} uploads hold the seed, which removes the noise. Leave out the seed, or set "
                f"{variable}=false."
            )
