"""Private training with the `Trainer` of Hugging Face `transformers`, and with those of TRL.

`PrivateTrainer` takes the place of `transformers.Trainer`. `PrivateTrainerMixin` makes the training of a
subclass private: `class PrivateSFT(PrivateTrainerMixin, SFTTrainer)`. docs/huggingface.md has examples.
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "adamas.integrations.transformers needs Hugging Face transformers. Install it by "
        "pip install 'adamas[transformers]'.",
        name="transformers",
    ) from error

from adamas.integrations.transformers.privacy import Privacy
from adamas.integrations.transformers.trainer import PrivateTrainer, PrivateTrainerMixin

__all__ = ["Privacy", "PrivateTrainer", "PrivateTrainerMixin"]
