"""The optimizer of a private loop, which steps on releases only."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from adamas.privatize import PrivateGradient


class Gate:
    """Lets an optimizer step once for each release, on unchanged gradients.

    Use `Gate.of`: an optimizer has one gate, which stays.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._release: PrivateGradient | None = None
        self._written: dict[Tensor, tuple[Tensor, int]] = {}
        optimizer.register_step_pre_hook(self._before_step)

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> "Gate":
        """Returns the gate of an optimizer, which from now on steps on releases only."""
        if optimizer not in _gates:
            _gates[optimizer] = cls(optimizer)
        return _gates[optimizer]

    def check_used(self) -> None:
        """Raises if the last release is still in `p.grad`: another one would not be added to it."""
        unused = self._release is not None and any(
            p.grad is gradient and gradient._version == version
            for p, (gradient, version) in self._written.items()
        )
        if unused:
            raise RuntimeError(
                "Expected optimizer.step() after each loss.backward(), got a second backward() before it: "
                "releases do not add up. For gradient accumulation, give the data loader the whole "
                "batch_size, and take BatchMemoryManager to limit memory. To drop the last "
                "release, call zero_grad()."
            )

    def write(self, release: PrivateGradient) -> None:
        """Takes the release of the next step, and writes a copy into `p.grad` of each parameter."""
        self._release = release
        self._written = {}
        for p in self._parameters():
            p.grad = release.mean[p].to(p.dtype, copy=True) if p in release.mean else None
            if p.grad is not None:
                self._written[p] = p.grad, p.grad._version

    def _parameters(self) -> Iterator[Tensor]:
        optimizer = self._optimizer()
        assert optimizer is not None
        return (p for group in optimizer.param_groups for p in group["params"])

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuses a closure, which torch calls after this, and hands the release to the optimizer."""
        if any(value is not None for value in (*args[1:], *kwargs.values())):  # args[0] is the optimizer
            raise RuntimeError(
                "Expected step() of the optimizer that was given to make_private without closure=, got one: "
                "torch calls it after the release was checked, so what it does to p.grad would train without "
                "privacy. Call step(closure) of the optimizer that make_private returned, which calls the "
                "closure first."
            )
        self._pass()

    def _pass(self) -> None:
        """Hands the release to the optimizer, before its step."""
        release, self._release = self._release, None
        written, self._written = self._written, {}
        if release is None:
            raise RuntimeError(
                "optimizer.step() needs a fresh release. Call loss.backward() on the loss of the current "
                "batch before each step; gradients of plain tensors are not private."
            )
        for p in self._parameters():
            gradient, version = written.get(p, (None, 0))
            if p.grad is None and gradient is not None:
                raise RuntimeError(
                    "optimizer.step() found a parameter whose gradient is None: zero_grad() was called after "
                    "loss.backward(). Call it before."
                )
            if p.grad is not gradient or (gradient is not None and gradient._version != version):
                raise RuntimeError(
                    "optimizer.step() found a gradient that is not the release's any more: a backward() of "
                    "plain tensors, clip_grad_norm_ or another change reached p.grad after loss.backward(), "
                    "so it may not be private. Leave p.grad alone between loss.backward() and step()."
                )
        optimizer = self._optimizer()
        assert optimizer is not None
        release.write_to(optimizer)


_gates: "weakref.WeakKeyDictionary[torch.optim.Optimizer, Gate]" = weakref.WeakKeyDictionary()


class PrivateOptimizer(torch.optim.Optimizer):
    """The user's optimizer, with the names that scripts for Opacus read.

    It shares groups, state and defaults with the user's optimizer, and offers its other attributes.

    Attributes:
        original_optimizer: The user's optimizer.
        noise_multiplier: Standard deviation of the noise on a sum of sensitivity 1.
        max_grad_norm: Radius to which an example's gradient is clipped.
        expected_batch_size: The divisor of the sum.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: int,
    ) -> None:
        # torch's own constructor would make groups and a state beside those of the user's optimizer.
        self.original_optimizer = optimizer
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "original_optimizer":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self.original_optimizer, name)

    def __repr__(self) -> str:
        return f"PrivateOptimizer({self.original_optimizer!r})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses copy, deepcopy and pickle: a copy would have no run that makes releases for it."""
        raise TypeError(
            "A private optimizer cannot be copied: it steps on the releases of its run. Copy "
            "optimizer.state_dict(), or save the run by PrivacyEngine.save_checkpoint."
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of parameters of the user's optimizer."""
        return self.original_optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the user's optimizer."""
        return self.original_optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the user's optimizer."""
        return self.original_optimizer.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates the parameters with the last release, once. A closure is called first."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.original_optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as torch does. The next release replaces them anyway."""
        self.original_optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the user's optimizer."""
        self.original_optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the user's optimizer."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state. The next release then raises: use `PrivacyEngine.load_checkpoint`."""
        self.original_optimizer.load_state_dict(state_dict)
