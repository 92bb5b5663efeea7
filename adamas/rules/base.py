"""The base class of update rules: a `torch.optim.Optimizer` that steps on private gradients only."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adamas.geometry import Geometry, Value

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""Parameters, named parameters or groups of them, as torch's optimizers take them."""

Options: TypeAlias = dict[str, Any]
"""Hyperparameters of a parameter group."""

State: TypeAlias = dict[str, Any]
"""State that a rule keeps for one parameter."""


# Keys that a group may hold besides its options: torch's own, and those that schedulers set.
_GROUP_KEYS = {
    *("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "swa_lr"),
    *("base_momentum", "max_momentum"),
}


@dataclass(frozen=True)
class Moments:
    """Moments of one parameter after a step, corrected for their start at 0.

    Attributes:
        m_hat: First moment, the direction of the update.
        v_hat: Second moment, noise included.
        phi_hat: The noise's share of v_hat; its mean if it differs by coordinate and is not subtracted.
        floor: The smallest value under the root; None if the noise is not subtracted.
        denominator: The divisor of the update.
    """

    m_hat: Tensor
    v_hat: Tensor
    phi_hat: Value
    floor: Value | None
    denominator: Tensor


class Rule(torch.optim.Optimizer, ABC):
    """Turns releases into updates of the parameters.

    A subclass implements `_check` and `_update`. It reads `p.grad`, the private mean gradient, and the
    variance of its noise; it does not know the noise multiplier, the clip norm or the batch size. A rule that
    shapes the clipping of the next step overrides `geometry`.

    Privacy: a rule sees only releases, so everything it does is post-processing.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> class Sign(rules.Rule):
        ...     def __init__(self, params, lr=1e-3):
        ...         super().__init__(params, {"lr": lr})
        ...     @staticmethod
        ...     def _check(options):
        ...         assert options["lr"] >= 0
        ...     def _update(self, p, gradient, noise_variance, group, state):
        ...         p.add_(gradient.sign(), alpha=-group["lr"])
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> rule = Sign([p], lr=0.5)
        >>> PrivateGradient({p: torch.tensor([3.0, -2.0])}, {p: 1.0}).write_to(rule)
        >>> rule.step()
        >>> p.tolist()
        [-0.5, 0.5]
    """

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._check(defaults)
        super().__init__(params, defaults)
        self._noise_variance: Mapping[Tensor, Value] | None = None
        self._written: dict[Tensor, tuple[Tensor, int]] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a rule. A copied, unpickled or loaded rule has no fresh release."""
        super().__setstate__(state)
        self._noise_variance = None
        self._written = {}

    def add_param_group(self, param_group: Options) -> None:
        """Adds parameters with hyperparameters of their own and an empty state."""
        unknown = param_group.keys() - self.defaults.keys() - _GROUP_KEYS
        if unknown:
            raise ValueError(
                f"Expected options of {type(self).__name__} in a group, {', '.join(self.defaults)}; got "
                f"{', '.join(map(repr, sorted(unknown)))}."
            )
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if not self.param_groups[-1]["params"]:
            self.param_groups.pop()
            raise ValueError("Expected params of a group to hold at least one parameter, got an empty list.")

    def trainable(self) -> list[Tensor]:
        """Returns the parameters that the rule updates: those that require a gradient."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def geometry(self) -> Geometry:
        """Returns center and scale for clipping in the next step, relative to the clip norm."""
        return Geometry.ball(self.trainable(), 1.0)

    def moments(self, p: Tensor) -> Moments | None:
        """Returns a parameter's moments after the last step; None before the first or if there are none."""
        return None

    def receive(self, mean: Mapping[Tensor, Tensor], noise_variance: Mapping[Tensor, Value]) -> None:
        """Writes a fresh release into `p.grad`; called by `PrivateGradient.write_to`."""
        mine = self.trainable()
        if len(mine) != len(noise_variance) or any(p not in noise_variance for p in mine):
            raise ValueError(
                f"Expected a release for the rule's {len(mine)} trainable parameters, got one for "
                f"{len(noise_variance)} parameters that are not the same. Build the rule from "
                "model.parameters() of the model that the gradients belong to."
            )
        self._noise_variance = {
            p: float(v) if isinstance(v, Tensor) and not v.dim() else v for p, v in noise_variance.items()
        }
        for p in mine:
            p.grad = mean[p].to(p.dtype)
            self._written[p] = (p.grad, p.grad._version)

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's state dict, with the name of the rule."""
        return super().state_dict() | {"rule": type(self).__name__}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a saved state of the same rule, in its saved dtypes.

        Torch would cast the state to the dtype of the parameters, and so round the float32 moments of a
        bfloat16 model.
        """
        saved_by = state_dict.get("rule", type(self).__name__)
        if saved_by != type(self).__name__:
            raise ValueError(f"Expected a state of {type(self).__name__}, got one of {saved_by}.")
        super().load_state_dict(state_dict)
        params = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            for name, value in saved.items():
                if isinstance(value, Tensor):
                    self.state[params[index]][name] = value.clone().to(params[index].device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with the last release, once.

        Args:
            closure: Called first, for training loops that hand their work to the optimizer. It must write a
                release to this rule, unless that was done before.

        Returns:
            What the closure returned.

        Raises:
            RuntimeError: If there is no fresh release: a gradient that did not come through the door
                is not private.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if self._noise_variance is None:
            raise RuntimeError(
                "step() needs a fresh release. Call release.write_to(rule) before each rule.step(), or "
                "iterate over the run that adamas.make_private returns."
            )
        if any(p.grad is None for p in self.trainable()):
            raise RuntimeError(
                "step() found a parameter whose gradient is None: zero_grad() was called after "
                "release.write_to(rule). Write the release again, or drop the zero_grad()."
            )
        if any(p.grad is not g or g._version != version for p, (g, version) in self._written.items()):
            self._noise_variance = None
            raise RuntimeError(
                "step() found a gradient that is not the release's any more: a backward() or another change "
                "in place reached p.grad after release.write_to(rule), so it may not be private. Write the "
                "release right before step()."
            )
        variance, self._noise_variance = self._noise_variance, None
        self._written = {}
        self._before_update()
        for group in self.param_groups:
            self._update_group([p for p in group["params"] if p.requires_grad], variance, group)
        return result

    @staticmethod
    def _check(options: Options) -> None:
        """Raises if a hyperparameter of a group is invalid, and names it."""

    def _before_update(self) -> None:
        """Collects what the updates need from all parameters, before any parameter changes."""

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        """Updates the parameters of a group, one by one unless a rule has a kernel for all of them."""
        for p in params:
            assert p.grad is not None
            self._update(p, p.grad, noise_variance[p], group, self.state[p])

    @abstractmethod
    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        """Updates `p` and its state in place from the private mean gradient of `p`."""


def with_momentum(direction: Tensor, group: Options, state: State) -> Tensor:
    """Returns the direction with momentum, and updates `momentum_buffer`, if the group has momentum."""
    if not group["momentum"]:
        return direction
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(direction)
    result: Tensor = state["momentum_buffer"].mul_(group["momentum"]).add_(direction)
    return result
