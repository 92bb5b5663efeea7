"""Flower's messages as the network delivers them, for tests without a network."""

import time

from flwr.app import Message, RecordDict
from flwr.app.metadata import Metadata


def sent(content: RecordDict, kind: str, *, source: int = 0, target: int = 1) -> Message:
    """Makes a message of the kind "query" or "train"."""
    metadata = Metadata(1, "message", source, target, "", "", time.time(), 3600.0, kind)
    return Message(metadata=metadata, content=content)
