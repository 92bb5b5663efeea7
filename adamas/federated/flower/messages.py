"""Converts records and plain data to the content of Flower's messages, and back."""

import json
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from adamas.federated.arrays import Arrays, Records
from adamas.federated.checks import check_names, read_json

_WORDS = "adamas"
_TEXT = "json"


def pack(records: Records, words: dict[str, Any]) -> RecordDict:
    """Makes the content of a message from records and plain data."""
    content = {name: packed_arrays(arrays) for name, arrays in records.items()}
    return RecordDict({**content, _WORDS: ConfigRecord({_TEXT: json.dumps(words)})})


def unpack(content: RecordDict) -> tuple[Records, dict[str, Any]]:
    """Reads the content that `pack` made.

    Raises:
        ValueError: If the content has another form. For tensors that cannot be read, Flower raises its own
            errors.
    """
    check_names("message", content.metric_records, ())
    check_names("message", content.config_records, (_WORDS,))
    check_names("message", content.config_records[_WORDS], (_TEXT,))
    words = read_json(content.config_records[_WORDS][_TEXT])
    if not isinstance(words, dict):
        raise ValueError(f"Expected a mapping of names to values, got {type(words).__name__}.")
    records: Records = {name: unpacked_arrays(arrays) for name, arrays in content.array_records.items()}
    return records, words


def packed_arrays(arrays: Arrays) -> ArrayRecord:
    """Converts tensors by name to Flower's form."""
    return ArrayRecord(dict(arrays))


def unpacked_arrays(record: ArrayRecord) -> Arrays:
    """Converts tensors from Flower's form."""
    return dict(record.to_torch_state_dict())
