"""Refuses trackers that watch private passes of the model, or upload checkpoints with a given seed."""

import os
from collections.abc import Iterable

from transformers import TrainerCallback

from adamas.errors import UnsupportedError
from adamas.integrations.transformers.privacy import Privacy

_WATCHES = ("all", "parameters", "gradients")
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
    """Raises if a tracker shows what is private, or the seed, which removes the noise.

    Args:
        callbacks: The callbacks of a trainer.
        privacy: Gives the seed.
    """
    names = [kind.__name__ for one in callbacks for kind in type(one).__mro__]
    watched = os.environ.get("WANDB_WATCH", "false")
    if "WandbCallback" in names and watched in _WATCHES:
        raise UnsupportedError(
            f"Expected no WANDB_WATCH={watched!r}: it logs gradients without noise, or at passes of the "
            "model, whose number depends on how many records took part. Unset it."
        )
    for name in names if privacy.seed is not None else ():
        variable, default, uploading = UPLOADS.get(name, ("", "", frozenset()))
        value = os.environ.get(variable, default)
        if value.lower() in uploading:
            raise UnsupportedError(
                f"Expected no seed in Privacy with {variable}={value!r}: the checkpoints that {name} uploads "
                f"hold the seed, which removes the noise. Leave out the seed, or set {variable}=false."
            )
