"""What every update rule is: a `torch.optim.Optimizer` that steps on private gradients only."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adamas.geometry import Geometry, Value

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""What torch's optimizers take: parameters, named parameters, or groups of them."""

Options: TypeAlias = dict[str, Any]
"""The hyperparameters of a group."""

State: TypeAlias = dict[str, Any]
"""What a rule keeps for one parameter."""


# What a group may hold beside its options: torch's own, and what schedulers note in it.
_GROUP_KEYS = {
    *("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "swa_lr"),
    *("base_momentum", "max_momentum"),
}


@dataclass(frozen=True)
class Moments:
    """What a rule knows of one parameter after a step, corrected for a start at 0.

    Attributes:
        m_hat: First moment, the direction of the update.
        v_hat: Second moment, with the noise in it.
        phi_hat: The noise's share of it; its mean where it differs by coordinate and is not subtracted.
        floor: The least value under the root; None if the noise is not subtracted.
        denominator: What the update divides by.
    """

    m_hat: Tensor
    v_hat: Tensor
    phi_hat: Value
    floor: Value | None
    denominator: Tensor


class Rule(torch.optim.Optimizer, ABC):
    """Turns releases into updates of the parameters.

    A subclass writes `_check` and `_update`. It reads `p.grad`, the private mean gradient, and the variance
    of the noise in it; it knows neither the noise multiplier nor the clip norm nor the batch size. A rule
    that shapes the clipping of the next step overrides `geometry`.

    Privacy: a rule sees releases only, so all that it does is post-processing.
    """

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._check(defaults)
        super().__init__(params, defaults)
        self._noise_variance: Mapping[Tensor, Value] | None = None
        self._written: dict[Tensor, tuple[Tensor, int]] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied, unpickled or loaded rule has no fresh release."""
        super().__setstate__(state)
        self._noise_variance = None
        self._written = {}

    def add_param_group(self, param_group: Options) -> None:
        """Adds parameters with hyperparameters of their own; they start afresh."""
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
        """The parameters that the rule updates: those that require a gradient."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def geometry(self) -> Geometry:
        """The centre and scale of the next step's clipping, relative to the clip norm."""
        return Geometry.ball(self.trainable(), 1.0)

    def moments(self, p: Tensor) -> Moments | None:
        """The moments of a parameter after the last step; None before the first, and for a rule without."""
        return None

    def receive(self, mean: Mapping[Tensor, Tensor], noise_variance: Mapping[Tensor, Value]) -> None:
        """Takes a fresh release into `p.grad`; `PrivateGradient.write_to` calls it."""
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
        """As torch's, with the name of the rule."""
        return super().state_dict() | {"rule": type(self).__name__}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a saved state of the same rule, in the number types in which it was saved.

        Torch alone would cast the state to the parameters' type, and so round the float32 moments of a
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
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates the parameters with the release that was written last, once.

        Raises:
            RuntimeError: If there is no fresh release: a gradient that did not come through the door
                is not private.
        """
        if closure is not None:
            raise TypeError("Expected step() without a closure: the gradient comes from a release.")
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

    @staticmethod
    def _check(options: Options) -> None:
        """Raises if the hyperparameters of a group make no sense, naming the one that does not."""

    def _before_update(self) -> None:
        """Notes what an update of one parameter needs to know of all of them, before any is changed."""

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        """Changes the parameters of a group, one by one unless a rule has a kernel for all of them."""
        for p in params:
            assert p.grad is not None
            self._update(p, p.grad, noise_variance[p], group, self.state[p])

    @abstractmethod
    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        """Changes `p` and its state in place, given the private mean gradient of `p`."""


def with_momentum(direction: Tensor, group: Options, state: State) -> Tensor:
    """The direction, added to the kept `momentum_buffer` times the group's momentum, if there is any."""
    if not group["momentum"]:
        return direction
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(direction)
    result: Tensor = state["momentum_buffer"].mul_(group["momentum"]).add_(direction)
    return result
