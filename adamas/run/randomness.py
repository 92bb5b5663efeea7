"""Random values of the model, such as dropout masks: a function of seed and step."""

from contextlib import AbstractContextManager

from adamas._streams import Seed, torch_randomness


def model_randomness(seed: Seed, step: int, *place: int) -> AbstractContextManager[None]:
    """Seeds torch's global generator by seed and step, and restores it afterwards."""
    return torch_randomness(int(seed.words("model", step, *place, count=1)[0]))
