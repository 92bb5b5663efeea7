"""Records as Flower's messages carry them."""

import json
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from adamas.federated.arrays import Arrays, Records
from adamas.federated.checks import check_names, read_json

_WORDS = "adamas"
_TEXT = "json"


def pack(records: Records, words: dict[str, Any]) -> RecordDict:
    """Groups of tensors and plain data as the content of a message."""
    content = {name: packed_arrays(arrays) for name, arrays in records.items()}
    return RecordDict({**content, _WORDS: ConfigRecord({_TEXT: json.dumps(words)})})


def unpack(content: RecordDict) -> tuple[Records, dict[str, Any]]:
    """What `pack` was given.

    Raises:
        ValueError: If it was another function. Tensors that cannot be read raise what Flower raises.
    """
    check_names("message", content.metric_records, ())
    check_names("message", content.config_records, (_WORDS,))
    check_names("message", content.config_records[_WORDS], (_TEXT,))
    words = read_json(content.config_records[_WORDS][_TEXT])
    if not isinstance(words, dict):
        raise ValueError(f"Expected names with values, got {type(words).__name__}.")
    records: Records = {name: unpacked_arrays(arrays) for name, arrays in content.array_records.items()}
    return records, words


def packed_arrays(arrays: Arrays) -> ArrayRecord:
    """Tensors by name as Flower keeps them."""
    return ArrayRecord(dict(arrays))


def unpacked_arrays(record: ArrayRecord) -> Arrays:
    """What `packed_arrays` was given."""
    return dict(record.to_torch_state_dict())
