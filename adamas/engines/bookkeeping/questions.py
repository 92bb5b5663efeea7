"""Questions that a model asks about its tensors, sorted by what the answers reveal about the batch."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adamas.engines.bookkeeping.counts import Shape

_SAME_FOR_EVERY_BATCH = """
dtype device ndim layout requires_grad is_leaf is_cuda is_cpu is_sparse is_sparse_csr is_quantized
is_meta is_mkldnn is_nested is_mps is_xpu is_xla is_ipu is_vulkan is_maia is_mtia names itemsize
_version output_nr is_hpu retains_grad
"""

# Answers that are the same for every batch.
HARMLESS: set[Any] = {
    *(Tensor.dim, Tensor.ndimension, Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size),
    *(Tensor.get_device, Tensor.is_contiguous, Tensor.is_signed, Tensor.is_inference),
    *(torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.is_signed, torch.is_inference),
    *(Tensor.__hash__, torch.result_type),
    *(torch.get_device, Tensor.is_shared, Tensor.is_pinned, torch.numel),
}
for _name in _SAME_FOR_EVERY_BATCH.split():
    if hasattr(Tensor, _name):
        HARMLESS.add(getattr(Tensor, _name).__get__)
HARMLESS.add(Tensor.requires_grad.__set__)  # type: ignore[attr-defined]

# Answers that hold the number of examples; each is computed from a shape with `Count`s.
SHAPES: dict[Any, Callable[[Shape, tuple[Any, ...], dict[str, Any]], Any]] = {
    Tensor.shape.__get__: lambda shape, args, kwargs: shape,  # type: ignore[attr-defined]
    Tensor.size: lambda shape, args, kwargs: (
        shape[args[1]] if len(args) > 1 else shape[kwargs["dim"]] if kwargs.get("dim") is not None else shape
    ),
    Tensor.numel: lambda shape, args, kwargs: shape.numel(),
    Tensor.nelement: lambda shape, args, kwargs: shape.numel(),
    torch.numel: lambda shape, args, kwargs: shape.numel(),
    Tensor.__len__: lambda shape, args, kwargs: shape[0],
}

GRAD = Tensor.grad.__get__  # type: ignore[union-attr]
_GRAD_FN = Tensor.grad_fn.__get__  # type: ignore[union-attr]

# Ways to change a gradient on its way back.
HOOKS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, _GRAD_FN)

# Strides reveal the number of examples unless the examples are on the first axis.
STRIDES = {Tensor.stride, Tensor.storage_offset}

# Answers that hold values of the batch.
READS: set[Any] = {
    *STRIDES,
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__),
    *(Tensor.__index__, Tensor.__array__, Tensor.__contains__, Tensor.__repr__, Tensor.__complex__),
    *(Tensor.__format__, Tensor.is_nonzero, torch.is_nonzero, torch.equal, Tensor.equal, torch.allclose),
    *(Tensor.allclose, Tensor.untyped_storage, Tensor.storage, Tensor.data_ptr, Tensor.__dlpack__),
    *(Tensor.backward, Tensor.__reduce_ex__, Tensor.__deepcopy__, Tensor.share_memory_),
}

# Modules that ask only whether a shortcut applies, such as no mask where no token is masked. The engine
# answers no, which does not depend on the batch and gives the same result.
SHORTCUTS = {"transformers.masking_utils"}

_IN_PLACE_OPERATORS = {
    *("__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__imod__"),
    *("__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__imatmul__"),
    "__setitem__",
}


def works_in_place(name: str) -> bool:
    """Tells by its name whether a function changes its first argument."""
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS


@functools.lru_cache(maxsize=4096)
def function_name(func: Any) -> str:
    """Returns the name of a function, or of the property that it reads."""
    name = getattr(func, "__name__", str(func))
    return func.__self__.__name__ if name == "__get__" else name
