"""Checks plain data and tensors from a peer, for nodes and servers alike.

Each check raises a ValueError that names the field. Texts from a peer are truncated before they are shown.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

LARGEST = 1e9
"""The largest absolute value in an update. Sums of such values are finite, and so are the losses of a small
model with such parameters, so that no client can end a training by overflow."""

_LARGEST_WHOLE = 2**63 - 1
_SHOWN = 80  # characters of a peer's text


def read_json(text: object) -> Any:
    """Reads JSON, and refuses numbers that are not finite and names that occur twice."""
    if not isinstance(text, str):
        raise ValueError(f"Expected JSON as a text, got {type(text).__name__}.")
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once, parse_float=_finite)
    except RecursionError:
        raise ValueError("Expected JSON with few levels.") from None


def check_names(what: str, values: object, expected: Collection[str]) -> Mapping[str, Any]:
    """Returns `values` if it is a mapping with the expected names and no others."""
    if not isinstance(values, Mapping):
        raise ValueError(f"Expected {what} to be a mapping of names to values, got {type(values).__name__}.")
    wrong = sorted(map(str, values.keys() ^ set(expected)))
    if wrong:
        raise ValueError(f"Expected {what} of the same training; missing or unknown: {shown(wrong)}.")
    return values


def check_whole(name: str, value: object, *, least: int = 0, most: int = _LARGEST_WHOLE) -> int:
    """Returns `value` if it is a whole number within the bounds. True and 3.0 are not."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"Expected {name}={shown(value)} to be a whole number from {least} to {most}.")
    return value


def check_number(name: str, value: object, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Returns `value` as a float if it is a finite number within the bounds. True and "1" are not."""
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise ValueError(f"Expected {name}={shown(value)} to be a number from {least:g} to {most:g}.")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"Expected {name}={shown(value)} to be finite.")
    return number


def check_plain(name: str, value: object) -> None:
    """Raises unless options consist of names, texts, booleans and finite numbers below 2^63."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_plain(f"{name}.{shown(key)}", item)
    elif isinstance(value, list):
        for item in value:
            check_plain(name, item)
    elif type(value) in (int, float):
        check_number(name, value, least=-_LARGEST_WHOLE, most=_LARGEST_WHOLE)
    elif value is not None and not isinstance(value, str | bool):
        raise ValueError(f"Expected {name} of plain values, got {type(value).__name__}.")


def check_arrays(
    what: str,
    values: object,
    expected: Mapping[str, Tensor],
    *,
    non_negative: bool = False,
    most: float = math.inf,
) -> None:
    """Raises unless the tensors have the expected names, shapes, types and layouts, and finite values.

    Args:
        what: The name of the record, for messages.
        values: Tensors by name.
        expected: Tensors with the expected names, shapes, types and layouts.
        non_negative: Whether negative values are refused, too, as for second moments.
        most: The largest absolute value.
    """
    for name, value in check_names(what, values, expected.keys()).items():
        _check_tensor(f"{what}[{name!r}]", value, expected[name], non_negative, most)


def _check_tensor(name: str, value: object, expected: Tensor, non_negative: bool, most: float) -> None:
    if type(value) not in (Tensor, torch.nn.Parameter):
        raise ValueError(f"Expected {name} to be a tensor, got {type(value).__name__}.")
    assert isinstance(value, Tensor)
    # The layout comes first: on a sparse or nested tensor the other questions raise.
    for kind, mine, other in (
        ("layout", expected.layout, value.layout),
        ("type", expected.dtype, value.dtype),
        ("device", expected.device.type, value.device.type),
    ):
        if mine != other:
            raise ValueError(f"Expected {name} of {kind} {mine}, got {other}.")
    if value.is_nested or value.is_quantized or value.requires_grad:
        raise ValueError(f"Expected {name} to be a plain tensor without a gradient.")
    if value.shape != expected.shape:
        raise ValueError(
            f"Expected {name} of shape {tuple(expected.shape)}, got {shown(tuple(value.shape))}."
        )
    if not value.numel():
        return
    lowest, highest = (float(end) for end in value.detach().aminmax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise ValueError(f"Expected {name} of finite values: it has some that are not finite.")
    if max(-lowest, highest) > most:
        raise ValueError(f"Expected {name} of values up to {most:g}: it has some beyond.")
    if non_negative and lowest < 0:
        raise ValueError(f"Expected {name} of values from 0: it has some below.")


def error_name(said: object) -> str:
    """Returns a peer's error, if it is the name of an error and nothing longer."""
    if isinstance(said, str) and said.isidentifier() and said.isascii() and len(said) <= _SHOWN:
        return said
    return "an error without a name"


def shown(value: object) -> str:
    """Formats a peer's value as a short text of one line."""
    try:
        text = ", ".join(map(str, value)) if isinstance(value, list) else repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = type(value).__name__
    text = "".join(sign if sign.isprintable() else "?" for sign in text[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _refuse(constant: str) -> float:
    raise ValueError(f"Expected finite numbers, got {constant}.")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("Expected every name once.")
    return result
