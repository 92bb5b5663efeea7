"""Reads and checks the requests of a server, before a node does anything else with them."""

from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records
from adamas.federated.checks import check_names, check_number, check_plain, check_whole
from adamas.federated.flower.messages import unpack
from adamas.federated.flower.node_config import RefusedError
from adamas.federated.settings import FederatedSettings

_ROUND = ("number", "total", "local_steps", "lost")


@dataclass(frozen=True)
class TrainRequest:
    """A request to train for a round.

    Attributes:
        text: The settings as they came.
        settings: The training.
        now: The round.
        noise_multiplier: Noise multiplier of each release.
        examples: Number of examples of the node, as it reported before the training.
        records: The server's state, which is checked once the model is known.
    """

    text: str
    settings: FederatedSettings
    now: Round
    noise_multiplier: float
    examples: int
    records: Records

    @classmethod
    def of(cls, content: RecordDict) -> "TrainRequest":
        """Reads a message.

        Raises:
            RefusedError: If the message is not a valid request.
        """
        try:
            records, words = unpack(content)
            check_names("request", words, ("settings", "noise_multiplier", "round", "examples"))
            settings = _settings(words["settings"])
            noise = check_number("noise_multiplier", words["noise_multiplier"], least=0.0)
            if settings.noise_multiplier not in (None, noise):
                raise ValueError("Expected the noise_multiplier of the settings.")
            examples = check_whole("examples", words["examples"], least=1)
            return cls(
                words["settings"], settings, _round(words["round"], settings), noise, examples, records
            )
        except Exception as error:  # a malformed message can raise anything
            raise RefusedError("Expected a request that this version can read.") from error


def describe_request(content: RecordDict) -> tuple[str, FederatedSettings]:
    """Reads a request to describe the node, and returns the settings of the training, as text and parsed.

    Raises:
        RefusedError: If the message is not a valid request.
    """
    try:
        records, words = unpack(content)
        check_names("records", records, ())
        check_names("request", words, ("settings",))
        return words["settings"], _settings(words["settings"])
    except Exception as error:  # a malformed message can raise anything
        raise RefusedError("Expected a request that this version can read.") from error


def _settings(text: Any) -> FederatedSettings:
    settings = FederatedSettings.from_json(text)
    for name, value in vars(settings).items():
        if name != "seed":  # which has its own bounds
            check_plain(name, value)
    return settings


def _round(words: object, settings: FederatedSettings) -> Round:
    said = check_names("round", words, _ROUND)
    check_whole("total", said["total"], least=settings.rounds, most=settings.rounds)
    check_whole("local_steps", said["local_steps"], least=settings.local_steps, most=settings.local_steps)
    number = check_whole("number", said["number"], most=settings.rounds - 1)
    check_whole("lost", said["lost"], most=number)
    return Round(**said)
