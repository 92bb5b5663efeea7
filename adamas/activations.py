"""What the frozen stage of a model makes of the examples: computed once, and kept in the cache.

A frozen stage is public and treats each example by itself, so that training on its outputs is training on the
examples, with the same guarantee, and without paying for the frozen part at each step.
"""

import dataclasses
import hashlib

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamas.data import Data
from adamas.data.cache import cache_folder, write_whole
from adamas.models import Staged

_EXAMPLES_AT_A_TIME = 64


def on_activations(model: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """The part of a model that trains, and the data as this part sees them.

    Args:
        model: A `Staged` model; any other is returned as it is, with the data as they are.
        data: The examples, whose last tensor holds the labels.

    Returns:
        `model.trained`, and the data with the outputs of `model.frozen` in the place of the inputs. They are
        kept in half precision, in files that are mapped into memory and shared by all processes.

    Example:
        >>> from adamas import data, models
        >>> digits = data.load("digits")
        >>> model = models.linear(digits.input_shape, digits.classes)
        >>> on_activations(model, digits) == (model, digits)
        True
    """
    if not isinstance(model, Staged):
        return model, data
    train, test = (_activations(model.frozen, examples) for examples in (data.train, data.test))
    return model.trained, dataclasses.replace(data, train=train, test=test)


def _activations(frozen: nn.Module, examples: TensorDataset) -> TensorDataset:
    *inputs, labels = examples.tensors
    path = cache_folder() / "activations" / f"{_digest(frozen, inputs)}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # others that want the same wait for it
        if not path.exists():
            outputs = _outputs(frozen, inputs)
            write_whole(path, lambda temporary: save_file(outputs, temporary))
    try:
        kept = load_file(path)
    except SafetensorError as error:
        raise RuntimeError(f"{path} is damaged: {error}. Delete it and try again.") from error
    return TensorDataset(*(kept[name] for name in sorted(kept)), labels)


@torch.no_grad()
def _outputs(frozen: nn.Module, inputs: list[Tensor]) -> dict[str, Tensor]:
    count = len(inputs[0])
    result: dict[str, Tensor] = {}
    for start in range(0, count, _EXAMPLES_AT_A_TIME):
        chunk = frozen(*(x[start : start + _EXAMPLES_AT_A_TIME] for x in inputs))
        for index, values in enumerate(chunk):
            if values.is_floating_point():
                values = values.half()
            name = f"output{index}"
            if name not in result:
                result[name] = values.new_empty((count, *values.shape[1:]))
            result[name][start : start + len(values)] = values
    return result


def _digest(frozen: nn.Module, inputs: list[Tensor]) -> str:
    """Another model, other weights or other examples have another name."""
    result = hashlib.sha256(repr(frozen).encode())
    for tensor in (*frozen.state_dict().values(), *inputs):
        result.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        result.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return result.hexdigest()
