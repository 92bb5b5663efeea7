"""Stores plain data with tensors in one file that is written whole, verified when read, and holds no code.

A file is in safetensors' format. Its metadata hold kind and version of the file, the data as JSON with a
number in place of each tensor, and a SHA-256 digest of data and tensors, which reveals a changed bit.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adamas._storage.files import replace_file

_FORMAT = "adamas"
_TENSOR, _TUPLE, _ITEMS = "$tensor", "$tuple", "$items"


def write_archive(path: Path, kind: str, version: int, content: dict[str, Any]) -> None:
    """Writes a file, or leaves the old one as it was.

    Args:
        path: The file.
        kind: The kind of content, such as "checkpoint".
        version: The version of the content's layout.
        content: Dictionaries, lists, tuples, texts, numbers, booleans, None, and tensors.

    Raises:
        TypeError: If the content holds anything else; the message names the place.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encoded(content, tensors, "content"))
    metadata = {
        "format": _FORMAT,
        "kind": kind,
        "version": str(version),
        "content": text,
        "sha256": _digest(kind, version, text, tensors),
    }
    replace_file(path, lambda temporary: write_tensors(temporary, tensors, metadata))


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a file in safetensors' format. A failing disk raises `OSError`, as elsewhere."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        raise OSError(f"The file {path} could not be written: {error}.") from error


def read_archive(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Reads what `write_archive` wrote, with tensors on the CPU.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is not such a file, is damaged, or is of a newer version.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected a {kind} in {path}, found no file.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(_damaged(path, kind, str(error))) from error
    if metadata.get("format") != _FORMAT or metadata.get("kind") != kind:
        raise ValueError(
            f"Expected {path} to be a {kind} of adamas, found "
            f"{metadata.get('kind', 'a safetensors file without our metadata')}."
        )
    found = metadata.get("version", "")
    if found.isdecimal() and int(found) > version:
        raise ValueError(
            f"Expected {path} to be a {kind} of version {version} or older, found {found}: it was written by "
            "a newer adamas. Update adamas to read it."
        )
    text = metadata.get("content", "")
    if metadata.get("sha256") != _digest(kind, found, text, tensors):
        raise ValueError(_damaged(path, kind, "its digest does not match its content"))
    if int(found) < version:
        raise ValueError(
            f"Expected {path} to be a {kind} of version {version}, found {found}, which this adamas cannot "
            "read. Use the version of adamas that wrote it."
        )
    content: dict[str, Any] = _decoded(json.loads(text), tensors)
    return content


def _damaged(path: Path, kind: str, reason: str) -> str:
    return (
        f"The {kind} {path} is damaged ({reason}). Use an older copy, and also count what was released "
        "since then."
    )


def _digest(kind: str, version: int | str, text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{kind} {version} {len(text)} {text}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encoded(value: Any, tensors: dict[str, Tensor], place: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = f"{len(tensors):06d}"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: name}
    if isinstance(value, list):
        return [_encoded(item, tensors, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(item, tensors, f"{place}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        encoded = {key: _encoded(item, tensors, f"{place}[{key!r}]") for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return encoded
        if all(isinstance(key, str | int) for key in value):
            return {_ITEMS: [[key, item] for key, item in encoded.items()]}
    raise TypeError(
        f"Expected plain data and tensors, got {type(value).__name__} at {place}: a file holds no code."
    )


def _decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if value.keys() == {_TUPLE}:
        return tuple(_decoded(item, tensors) for item in value[_TUPLE])
    if value.keys() == {_ITEMS}:
        return {key: _decoded(item, tensors) for key, item in value[_ITEMS]}
    return {key: _decoded(item, tensors) for key, item in value.items()}
