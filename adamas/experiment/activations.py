"""Computes the outputs of a frozen stage once, and keeps them in the cache.

A frozen stage is public and treats each example by itself. So training on its outputs has the guarantee of
training on the examples, without computing the frozen part at each step.

The files reveal as much as the examples themselves. Protect them alike: none of them is a release.
"""

import dataclasses
import hashlib
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamas._storage.archive import write_tensors
from adamas.data import Data
from adamas.data.cache import cache_folder, write_whole
from adamas.models import Staged

_EXAMPLES_AT_A_TIME = 64


def on_activations(model: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """Returns the part of a model that trains, and the data that it takes.

    Args:
        model: A `Staged` model; any other is returned unchanged, with unchanged data.
        data: The examples, whose last tensor holds the labels.

    Returns:
        `model.trained`, and the data with the outputs of `model.frozen` instead of the inputs. These are in
        half precision, in files that are mapped into memory and shared by all processes: a loss must convert
        them to the model's precision.

    Example:
        >>> from adamas import data, models
        >>> digits = data.load("digits")
        >>> model = models.linear(digits.input_shape, digits.classes)
        >>> on_activations(model, digits) == (model, digits)
        True
    """
    if not isinstance(model, Staged):
        return model, data
    examples = [one for one in (data.train, data.test) if isinstance(one, TensorDataset)]
    if len(examples) < 2:
        raise ValueError("Expected plain examples for a model with a frozen part, got terms of a graph.")
    train, test = (_activations(model.frozen, one) for one in examples)
    return model.trained, dataclasses.replace(data, train=train, test=test)


def _activations(frozen: nn.Module, examples: TensorDataset) -> TensorDataset:
    *inputs, labels = examples.tensors
    path = cache_folder() / "activations" / f"{_digest(frozen, inputs)}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # others that want the same wait for it
        kept = _read(path) if path.exists() else None
        if kept is None or not _is_made_by(frozen, inputs, kept):
            outputs = _outputs(frozen, inputs)
            write_whole(path, lambda temporary: write_tensors(temporary, outputs))
            kept = _read(path)
    return TensorDataset(*(kept[name] for name in sorted(kept)), labels)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise RuntimeError(f"{path} is damaged: {error}. Delete it and try again.") from error


def _is_made_by(frozen: nn.Module, inputs: list[Tensor], kept: dict[str, Tensor]) -> bool:
    """Tells whether three examples still give the kept outputs: the code may have changed."""
    count = len(inputs[0])
    probe = sorted({0, count // 2, count - 1})
    now = _outputs(frozen, [x[probe] for x in inputs])
    return now.keys() == kept.keys() and all(
        values.shape[1:] == kept[name].shape[1:]
        and torch.allclose(values.float(), kept[name][probe].float(), rtol=1e-2, atol=1e-2)
        for name, values in now.items()
    )


@torch.no_grad()
def _outputs(frozen: nn.Module, inputs: list[Tensor]) -> dict[str, Tensor]:
    count = len(inputs[0])
    result: dict[str, Tensor] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums depend on it in their last bits
    try:
        for start in range(0, count, _EXAMPLES_AT_A_TIME):
            chunk = frozen(*(x[start : start + _EXAMPLES_AT_A_TIME] for x in inputs))
            for index, values in enumerate(chunk):
                kept = _in_half(values)
                name = f"output{index:03}"
                if name not in result:
                    result[name] = kept.new_empty((count, *kept.shape[1:]))
                result[name][start : start + len(kept)] = kept
    finally:
        torch.set_num_threads(threads)
    return result


def _in_half(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        return values
    result = values.half()
    if not torch.equal(result.isfinite(), values.isfinite()):
        raise ValueError(
            f"Expected outputs of the frozen stage below {torch.finfo(torch.half).max:g}, the most that half "
            f"precision holds, got {values.abs().max():g}. Scale them in the model."
        )
    return result


def _digest(frozen: nn.Module, inputs: list[Tensor]) -> str:
    """Returns the cache key: it changes with modules, options, weights or inputs."""
    result = hashlib.sha256(f"1 {torch.__version__}".encode())  # 1: the form of the files
    for name, module in frozen.named_modules():
        options = {
            key: value
            for key, value in sorted(vars(module).items())
            if isinstance(value, int | float | str | tuple | None) and key != "training"
        }
        result.update(f"{name} {type(module).__module__}.{type(module).__qualname__} {options}".encode())
    for tensor in (*frozen.parameters(), *frozen.buffers(), *inputs):
        result.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        result.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()
