"""A private `SFTTrainer` of TRL on tiny models."""

from trl import SFTConfig, SFTTrainer

from adamas.integrations.transformers import Privacy, PrivateTrainerMixin
from tests.support.tiny_trainers import PRIVACY, SMALL, llama, texts, tokenizer


class PrivateSFT(PrivateTrainerMixin, SFTTrainer):
    """As a user makes it."""


def sft_arguments(folder, **changes):
    return SFTConfig(**(SMALL | {"output_dir": str(folder), "max_length": 10} | changes))


def sft(folder, *, model=None, data=None, privacy=None, arguments_=None, **more):
    return PrivateSFT(
        llama() if model is None else model,
        sft_arguments(folder, **(arguments_ or {})),
        train_dataset=texts() if data is None else data,
        processing_class=tokenizer(),
        privacy=Privacy(**(PRIVACY if privacy is None else privacy)),
        **more,
    )
