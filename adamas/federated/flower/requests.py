"""What a server asks of a node, read and checked before anything else is done with it."""

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
    """A round that a node is asked to train.

    Attributes:
        text: The settings as they came.
        settings: The training.
        now: The round.
        noise_multiplier: Of each release.
        examples: How many the node has, as it told before.
        records: The server's state, which is checked when the model is known.
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
            RefusedError: If it is no request that could be answered.
        """
        try:
            records, words = unpack(content)
            check_names("request", words, ("settings", "noise_multiplier", "round", "examples"))
            settings = _settings(words["settings"])
            noise = check_number("noise_multiplier", words["noise_multiplier"], least=0.0)
            if settings.noise_multiplier not in (None, noise):
                raise ValueError("Expected noise_multiplier of the settings.")
            examples = check_whole("examples", words["examples"], least=1)
            return cls(
                words["settings"], settings, _round(words["round"], settings), noise, examples, records
            )
        except Exception as error:  # whatever a message can make of a parser
            raise RefusedError("Expected a request that this version can read.") from error


def describe_request(content: RecordDict) -> tuple[str, FederatedSettings]:
    """The settings of a training that a node is asked about, as text and read.

    Raises:
        RefusedError: If it is no request that could be answered.
    """
    try:
        records, words = unpack(content)
        check_names("records", records, ())
        check_names("request", words, ("settings",))
        return words["settings"], _settings(words["settings"])
    except Exception as error:  # whatever a message can make of a parser
        raise RefusedError("Expected a request that this version can read.") from error


def _settings(text: Any) -> FederatedSettings:
    settings = FederatedSettings.from_json(text)
    for name, value in vars(settings).items():
        if name != "seed":  # which has bounds of its own
            check_plain(name, value)
    return settings


def _round(words: object, settings: FederatedSettings) -> Round:
    said = check_names("round", words, _ROUND)
    check_whole("total", said["total"], least=settings.rounds, most=settings.rounds)
    check_whole("local_steps", said["local_steps"], least=settings.local_steps, most=settings.local_steps)
    number = check_whole("number", said["number"], most=settings.rounds - 1)
    check_whole("lost", said["lost"], most=number)
    return Round(**said)
