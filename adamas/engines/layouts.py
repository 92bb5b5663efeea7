"""Where the examples of a batch are in the output of a function.

Sizes do not tell: a batch of 8 sequences of 8 tokens has two axes of length 8. So a model is probed once, on
a few examples: the gradient of one example's loss must vanish wherever the other examples are. That finds the
example axis of every use of a weight, and refuses a model that mixes its examples.

A layout is "axis0", "axis1", ..., "flat" (joined with other axes, examples first) or "flat-time-first".
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adamas.errors import UnsupportedError

Key = tuple[str, str, int]
"""A use of weights: their names, the function, and the number of axes."""


class Unprobed(Exception):
    """A use of a weight for which it is not yet known where its examples are."""


@dataclass
class Workspace:
    """What is learned about a model once and used at every step.

    Attributes:
        probed: Whether the model was tried on a few examples.
        checked: Whether its loss was checked, if only on one example.
        layouts: For each use of a weight, where the examples are in its output.
        open: Uses that had gradients of 0 only, so that any layout fitted.
        constant: Expansions and look-ups that do not run over the examples.
    """

    probed: bool = False
    checked: bool = False
    layouts: dict[Key, str] = field(default_factory=dict)
    open: set[Key] = field(default_factory=set)
    constant: set[Key] = field(default_factory=set)


class Layouts:
    """Answers where the examples are from what is known of the model, or finds it out in a probe.

    Args:
        workspace: What is known of the model.
        n: Number of examples.
        probing: Whether this is a probe.
    """

    def __init__(self, workspace: Workspace, n: int, probing: bool) -> None:
        self.workspace, self.n, self.probing = workspace, n, probing
        self.probe = 0  # while probing, the example whose loss alone is differentiated
        self._candidates: dict[Key, list[str]] = {}
        self._settled: set[Key] = set()

    def find(self, key: Key, e: Tensor, trailing: int, *, first_axis_only: bool = False) -> str | None:
        """Where the examples are in `e`, of which the last axes are features; None while probing."""
        fitting = _fitting(e.shape[: e.dim() - trailing], self.n)
        if self.probing:
            self._narrow(key, e, trailing, [o for o in fitting if o == "axis0" or not first_axis_only])
            return None
        if self.n == 1:
            return "flat"
        layout = self.workspace.layouts.get(key)
        if (
            layout is None
            and fitting
            and key in self.workspace.open
            and not e.nan_to_num(0.0, 0.0, 0.0).any()
        ):
            return fitting[0]  # gradients of 0: any layout is right
        if layout is None or layout not in fitting:
            raise Unprobed
        return layout

    def learn(self) -> None:
        """Ends a probe."""
        for key, options in self._candidates.items():
            if key in self._settled:
                self.workspace.layouts[key] = options[0]
                self.workspace.open.discard(key)
            else:
                self.workspace.open.add(key)
        self.workspace.probed = True

    def _narrow(self, key: Key, e: Tensor, trailing: int, fitting: list[str]) -> None:
        """Keeps the layouts in which only the probed example has a gradient."""
        if e.any():
            self._settled.add(key)
        e = e.nan_to_num(nan=0.0)  # a gradient of 0 through another example's NaN
        others = torch.arange(self.n, device=e.device) != self.probe
        good = []
        for option in self._candidates.get(key, fitting):
            size = by_example(e, option, self.n, trailing).flatten(1).abs().amax(1)
            if not size[others].any():
                good.append(option)
        if not good and key[1] in ("expand", "fixed embedding"):
            self.workspace.constant.add(key)
            raise Unprobed
        if not good:
            raise UnsupportedError(
                f"The examples of a batch mix after {key[0]} in {key[1]}, or are not on an axis of their "
                "own: the loss of one example has gradients for others in an output of shape "
                f"{tuple(e.shape)}. Make each loss a function of its own example, and keep the example axis "
                "first."
            )
        self._candidates[key] = good


def _fitting(lead: torch.Size, n: int) -> list[str]:
    """The layouts that leading axes of these lengths allow for n examples."""
    options = [f"axis{axis}" for axis, length in enumerate(lead) if length == n]
    if lead and n and lead[0] % n == 0 and (lead[0] > n or n == 1):
        options += ["flat", "flat-time-first"]
    return options


def by_example(t: Tensor, layout: str, n: int, trailing: int) -> Tensor:
    """`(n, places, *features)`, the last `trailing` axes being features."""
    features = t.shape[t.dim() - trailing :]
    if layout.startswith("axis") and layout != "axis0":
        t = t.movedim(int(layout[4:]), 0)
    elif layout == "flat-time-first":
        t = t.reshape(-1, n, *t.shape[1:]).transpose(0, 1)
    return t.reshape(n, -1, *features)
