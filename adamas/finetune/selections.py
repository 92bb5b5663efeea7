"""Chooses trainable parameters by name.

Patterns are shell patterns (`fnmatch`): `*` matches any characters, including dots, `?` one, `[0-9]` one of a
set; matching is case-sensitive. A pattern names parameters, or a module with everything in it:
`encoder.layer.5` also means `encoder.layer.5.*`.

A parameter with several names (tied weights) is one parameter: any of its names selects it, and it trains
wherever it is used.

References:
    Zhiqi Bu, Yu-Xiang Wang, Sheng Zha, George Karypis. "Differentially Private Bias-Term Fine-tuning of
    Foundation Models." ICML 2024. arXiv:2210.00036.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Patterns: TypeAlias = str | Sequence[str]
"""One pattern, or several; a name must match one of them."""

# Names of the layer that a new task replaces: in Hugging Face, torchvision, timm, and plain models.
_HEADS = ("classifier", "fc", "head", "heads", "score", "lm_head", "qa_outputs")

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)

_SHOWN = 12  # names that a printed selection shows


@dataclass(frozen=True)
class Selection:
    """Trainable parameters after a selection; `print` shows them.

    Attributes:
        names: The trainable parameters, each by its first name.
        trainable: Number of trainable scalars.
        total: Number of scalars in all parameters of the model.
        tied: Other names of parameters that have several.
    """

    names: tuple[str, ...]
    trainable: int
    total: int
    tied: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        share = 100 * self.trainable / max(1, self.total)
        counts = f"{self.trainable:,} of {self.total:,} parameters ({share:.3g}%)"
        lines = [f"{len(self.names)} trainable tensors, {counts}"]
        for name in self.names[:_SHOWN]:
            also = f" (tied to {', '.join(self.tied[name])})" if name in self.tied else ""
            lines.append(f"  {name}{also}")
        if len(self.names) > _SHOWN:
            lines.append(f"  ... and {len(self.names) - _SHOWN} more in .names")
        return "\n".join(lines)


def select(model: nn.Module, patterns: Patterns, *, freeze_rest: bool = True) -> Selection:
    """Makes matching parameters trainable, and freezes the others.

    Args:
        model: Any module; only `requires_grad` of its parameters changes.
        patterns: Shell patterns of parameters or modules; see the docstring of this module.
        freeze_rest: Freeze the parameters that do not match. If False, they stay as they are.

    Returns:
        Everything that is trainable now.

    Raises:
        ValueError: If a pattern matches nothing; the message has the nearest names.

    Example:
        >>> from torch import nn
        >>> from adamas import finetune
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> print(finetune.select(model, ["2", "*.bias"]))
        3 trainable tensors, 11 of 23 parameters (47.8%)
          0.bias
          2.weight
          2.bias
    """
    chosen = matching(model, patterns)
    for p in model.parameters():
        if p in chosen:
            p.requires_grad_(True)
        elif freeze_rest:
            p.requires_grad_(False)
    return selection(model)


def head(model: nn.Module, patterns: Patterns | None = None) -> Selection:
    """Trains the last layer only, also called linear probing.

    Args:
        model: The model.
        patterns: Shell patterns of the layer. None takes the outermost module with a usual name (classifier,
            fc, head, heads, score, lm_head, qa_outputs), or else the last `nn.Linear`.

    Example:
        >>> from torch import nn
        >>> from adamas import finetune
        >>> finetune.head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).names
        ('2.weight', '2.bias')
    """
    return select(model, head_patterns(model, patterns, argument="patterns"))


def bitfit(model: nn.Module, *, head: Patterns | None = None, norms: bool = False) -> Selection:
    """Trains every bias and the head: DP-BiTFiT (Bu et al., 2024).

    A bias is a parameter whose name ends in `bias`. The paper's method only selects parameters: any rule can
    train them.

    Args:
        model: The model.
        head: Shell patterns of the head, as in `head`; `()` trains biases only.
        norms: Also train the weights of normalisation layers.

    Example:
        >>> from torch import nn
        >>> from adamas import finetune
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
        >>> finetune.bitfit(model).names
        ('0.bias', '1.bias', '2.weight', '2.bias')
    """
    patterns = head_patterns(model, head)
    patterns += [name for name, _ in _named(model) if name.endswith("bias")]
    if norms:
        patterns += [name for name, m in model.named_modules() if is_norm(m) and _has_parameters(m)]
    if not patterns:
        raise ValueError(
            f"Expected {type(model).__name__} to have a bias, but no parameter's name ends in 'bias'. Choose "
            "others with select(model, patterns), or a head with head=."
        )
    return select(model, patterns)


def last_block(
    model: nn.Module, *, blocks: int = 1, head: Patterns | None = None, also: Patterns = ()
) -> Selection:
    """Trains the last of the model's repeated blocks, and the head.

    The blocks are the elements of the longest `nn.ModuleList` or `nn.Sequential` whose elements contain
    modules, such as `encoder.layer` of BERT and `transformer.h` of GPT-2. Among equally long ones, the
    outermost is taken, and among those the last.

    Args:
        model: The model.
        blocks: Number of blocks, counted from the end.
        head: Shell patterns of the head, as in `head`; `()` leaves it out.
        also: Shell patterns of further parameters, such as a pooler or the last normalisation.

    Example:
        >>> from torch import nn
        >>> from adamas import finetune
        >>> block = lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        >>> model = nn.ModuleDict({"body": nn.Sequential(block(), block()), "head": nn.Linear(3, 2)})
        >>> finetune.last_block(model).names
        ('body.1.0.weight', 'body.1.0.bias', 'head.weight', 'head.bias')
    """
    best: tuple[int, int, str, list[str]] | None = None
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            elements = [key for key, child in module.named_children() if _is_block(child)]
            rank = (len(elements), -name.count("."))
            if elements and (best is None or rank >= best[:2]):
                best = (*rank, name, elements)
    if best is None:
        raise ValueError(
            f"Expected {type(model).__name__} to have an nn.ModuleList or nn.Sequential of blocks, but found "
            "none. Name the parameters with select(model, patterns)."
        )
    _, _, name, elements = best
    if isinstance(blocks, bool) or not isinstance(blocks, int) or not 1 <= blocks <= len(elements):
        raise ValueError(f"Expected blocks={blocks!r} between 1 and {len(elements)}, the blocks of {name!r}.")
    prefix = f"{name}." if name else ""
    wanted = [f"{prefix}{key}" for key in elements[-blocks:]]
    return select(model, [*wanted, *head_patterns(model, head), *listed(also, "also")])


def head_patterns(model: nn.Module, patterns: Patterns | None, argument: str = "head") -> list[str]:
    """Returns the given patterns of the head, or finds the head."""
    if patterns is not None:
        return listed(patterns, argument)
    found = [
        name
        for name, module in model.named_modules()
        if name.split(".")[-1] in _HEADS and _has_parameters(module)
    ]
    depth = min((name.count(".") for name in found), default=0)
    outermost = [name for name in found if name.count(".") == depth]
    if len({name.rpartition(".")[0] for name in outermost}) > 1:
        raise ValueError(
            f"Expected one head, but each of {_some(outermost)} could be it. Name it with {argument}=."
        )
    if outermost:
        return outermost
    linear = [name for name, module in model.named_modules() if name and isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"Expected {type(model).__name__} to have a head, a module called {', '.join(_HEADS)}, or an "
            f"nn.Linear, but found none. Name it with {argument}=, a pattern of its parameters."
        )
    return linear[-1:]


def matching(model: nn.Module, patterns: Patterns) -> dict[Tensor, str]:
    """Returns the parameters with a matching name, and their first names."""
    first = {p: name for name, p in model.named_parameters()}
    named = list(_named(model))
    chosen: dict[Tensor, str] = {}
    for pattern in listed(patterns, "patterns", empty=False):
        hits = [p for name, p in named if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
        if not hits:
            near = _near(model, pattern)
            raise ValueError(f"Expected a parameter that matches {pattern!r}, found none. {near}")
        chosen |= {p: first[p] for p in hits}
    return chosen


def selection(model: nn.Module) -> Selection:
    """Describes the trainable parameters of a model."""
    trainable = {p: name for name, p in model.named_parameters() if p.requires_grad}
    tied: dict[str, tuple[str, ...]] = {}
    for name, p in _named(model):
        if p in trainable and name != trainable[p]:
            tied[trainable[p]] = (*tied.get(trainable[p], ()), name)
    return Selection(
        names=tuple(trainable.values()),
        trainable=sum(p.numel() for p in trainable),
        total=sum(p.numel() for p in model.parameters()),
        tied=tied,
    )


def listed(patterns: Patterns, argument: str, *, empty: bool = True) -> list[str]:
    """Returns patterns as a list of strings."""
    result = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in result:
        if not isinstance(pattern, str):
            raise TypeError(f"Expected {argument} to be a pattern or a list of patterns, got {pattern!r}.")
    if not (result or empty):
        raise ValueError(f"Expected {argument} to have a pattern, got none.")
    return result


def is_norm(module: nn.Module) -> bool:
    """Tells whether a module is a normalisation: by torch's classes, or by a name such as `LlamaRMSNorm`."""
    return isinstance(module, _NORMS) or type(module).__name__.endswith("Norm")


def _named(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Returns the parameters under all their names."""
    return model.named_parameters(remove_duplicate=False)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and _has_parameters(module)


def _near(model: nn.Module, pattern: str) -> str:
    params = [name for name, _ in _named(model)]
    modules = [name for name, _ in model.named_modules() if name]
    close = difflib.get_close_matches(pattern.strip("*."), params + modules, n=3, cutoff=0.4)
    return f"Near names: {_some(close)}." if close else f"The model has {_some(params)}."


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (" and more" if len(names) > 4 else "")
