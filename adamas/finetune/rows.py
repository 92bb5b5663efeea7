r"""Trains some rows of a weight: :math:`W = W_{old} + M \odot W_{new}`, where M masks the kept rows.

Only the kept rows of :math:`W_{new}` are stored, as one parameter of shape (rows, columns). They are applied
to the layer's input and added to its output,

.. math:: y = W_{old}\,x + b, \qquad y_{kept} \mathrel{+}= W_{new}\,x,

not to the weight. So the engines see an ordinary linear map or convolution of that size, for which they have
closed formulas, and not a weight that is computed from another.

References:
    Mehdi Makni, Kayhan Behdin, Gabriel Afriat, Zheng Xu, Sergei Vassilvitskii, Natalia Ponomareva, Hussein
    Hazimeh, Rahul Mazumder. "SPARTA: An Optimization Framework for Differentially Private Sparse
    Fine-Tuning." KDD 2025. arXiv:2503.12822.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.errors import UnsupportedError
from adamas.finetune.selections import Patterns, Selection, head_patterns, matching, selection

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class KeptRows(nn.Module):
    """A layer whose weight is frozen except for some rows; `keep_rows` replaces the layer by it.

    Args:
        base: The layer.
        rows: Rows (output units) that train.

    Attributes:
        base: The original layer, with its weight frozen.
        new: Learned change of the kept rows, `(rows, columns)`; starts at 0.
    """

    rows: Tensor

    def __init__(self, base: nn.Module, rows: Tensor) -> None:
        super().__init__()
        weight = base.get_parameter("weight").requires_grad_(False)
        self.base = base
        self.register_buffer("rows", rows.to(weight.device))
        self.new = nn.Parameter(torch.zeros_like(as_rows(base, weight)[self.rows]))
        self.train(base.training)

    @property
    def weight(self) -> Tensor:
        """The current weight, for code that reads it instead of calling the layer."""
        weight = self.base.get_parameter("weight")
        return as_rows(self.base, as_rows(self.base, weight).index_add(0, self.rows, self.new))

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias."""
        bias: Tensor | None = self.base.bias  # type: ignore[assignment]
        return bias

    def forward(self, x: Tensor) -> Tensor:
        """Returns the layer's output with the learned rows."""
        y: Tensor = self.base(x)
        if isinstance(self.base, _CONVOLUTIONS):
            added = self.base._conv_forward(x, self.new, None)  # with its stride and padding
            return y.index_add(-self.base.weight.dim() + 1, self.rows, added)
        return y.index_add(-1, self.rows, F.linear(x, self.new))


def row_weights(model: nn.Module, *, head: Patterns | None = None) -> list[str]:
    """Lists the weights whose rows can be kept: those of linear layers and convolutions, except the head.

    Tied weights and grouped convolutions are left out.

    Example:
        >>> from torch import nn
        >>> from adamas import finetune
        >>> finetune.row_weights(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
        ['0.weight']
    """
    patterns = head_patterns(model, head)
    outside = matching(model, patterns) if patterns else {}
    named = model.named_parameters()
    return [name for name, p in named if p not in outside and _refusal(model, name, p) is None]


def keep_rows(model: nn.Module, rows: Mapping[str, Tensor | Sequence[int]]) -> Selection:
    """Freezes weights except for some of their rows.

    Each layer is wrapped in a `KeptRows`, which computes the same until the rows are trained. Create the rule
    afterwards. All other parameters stay as they are.

    Args:
        model: The model.
        rows: For each weight, the rows (output units) that train; an empty list freezes the whole weight.

    Returns:
        Everything that is trainable now.

    Example:
        >>> import torch
        >>> from adamas import finetune
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        >>> print(finetune.keep_rows(model, {"0.weight": [2]}))
        4 trainable tensors, 15 of 27 parameters (55.6%)
          0.new
          0.base.bias
          2.weight
          2.bias
        >>> finetune.merge_rows(model)
        >>> list(model.state_dict())
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    if any(isinstance(module, KeptRows) for module in model.modules()):
        raise ValueError("Expected a model without kept rows. Fold them in first, with merge_rows(model).")
    params = dict(model.named_parameters())
    wanted: list[tuple[str, nn.Parameter, Tensor]] = []
    for name, kept in rows.items():
        if name not in params:
            known = next(iter(matching(model, name).values()))  # raises with near names if nothing matches
            raise ValueError(f"Expected {name!r} to be the first name of a parameter, such as {known!r}.")
        p = params[name]
        reason = _refusal(model, name, p)
        if reason is not None:
            raise UnsupportedError(f"Rows of {name!r} cannot be kept: {reason}. Leave it out.")
        owner = model.get_submodule(name.rpartition(".")[0])
        wanted.append((name, p, _checked(name, kept, as_rows(owner, p).shape[0])))
    for name, p, kept in wanted:
        p.requires_grad_(False)
        if kept.numel():
            owner = model.get_submodule(name.rpartition(".")[0])
            _replace(model, owner, KeptRows(owner, kept))
    return selection(model)


@torch.no_grad()
def merge_rows(model: nn.Module) -> None:
    """Folds kept rows into their weights and restores the model's own layers and names.

    The weights stay frozen.
    """
    for module in [m for m in model.modules() if isinstance(m, KeptRows)]:
        weight = module.base.get_parameter("weight")
        as_rows(module.base, weight).index_add_(0, module.rows, module.new.to(weight.dtype))
        _replace(model, module, module.base)


def as_rows(layer: nn.Module, weight: Tensor) -> Tensor:
    """Returns a layer's weight, or its gradient, with output units first; its own inverse."""
    return weight.T if _is_transposed(layer) else weight


def _is_transposed(layer: nn.Module) -> bool:
    """Tells whether a layer is Hugging Face's `Conv1D`, a linear layer with a weight of shape (in, out)."""
    return type(layer).__name__ == "Conv1D" and not isinstance(layer, nn.Conv1d)


def _refusal(model: nn.Module, name: str, p: nn.Parameter) -> str | None:
    """Returns why rows of a parameter cannot be kept; None if they can."""
    path, _, attribute = name.rpartition(".")
    layer = model.get_submodule(path)
    plain = any(type(layer).forward is kind.forward for kind in (nn.Linear, *_CONVOLUTIONS))
    if not path:
        return "it belongs to the model itself, not to a layer in it"
    if attribute != "weight" or not (plain or _is_transposed(layer)):
        kind = f"{attribute!r} of {type(layer).__name__}"
        return f"it is {kind}, not the weight of a linear layer or a convolution"
    if getattr(layer, "groups", 1) != 1:
        return "its convolution has groups"
    owners = {id(m) for m in model.modules() for q in m.parameters(recurse=False) if q is p}
    if len(owners) > 1:
        return "it is tied to another layer's"
    return None


def _checked(name: str, kept: Tensor | Sequence[int], height: int) -> Tensor:
    rows = torch.as_tensor(kept)
    if rows.numel() == 0:
        rows = rows.long().flatten()
    if rows.dim() != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise TypeError(f"Expected the rows of {name!r} as a list of whole numbers, got {kept!r}.")
    if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < height):
        raise ValueError(f"Expected rows of {name!r} from 0 to {height - 1}, got {rows.tolist()}.")
    if len(set(rows.tolist())) < rows.numel():
        raise ValueError(f"Expected each row of {name!r} once, got {rows.tolist()}.")
    return rows.long()


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replaces a module by another wherever it is used."""
    for parent in [m for m in model.modules() if m is not new]:
        for key, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, key, new)
