"""Ties the state of a rule to the ledger that counts its releases.

Trainers may restore optimizers on their own. A run that continues from such a state would build on releases
that are not in its ledger, and state an epsilon that is too low.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_MOMENTS = ("momentum_buffer", "m", "v")  # of rules that count no steps; a preconditioner may be public


class RuleState:
    """Notices a state that was loaded into a rule from outside its run.

    One object watches a rule for all runs of this process that use it.

    Attributes:
        remedy: Names, for the message, what loads such a state together with its ledger.
    """

    def __init__(self, rule: torch.optim.Optimizer) -> None:
        self._foreign = False
        self.remedy = "adamas.load or run.load_state_dict"
        noticed = weakref.WeakMethod(self._notice)

        def loaded(_: torch.optim.Optimizer) -> None:
            notice = noticed()
            if notice is not None:
                notice()

        rule.register_load_state_dict_post_hook(loaded)

    @classmethod
    def of(cls, rule: torch.optim.Optimizer, *, adopted: bool = False) -> "RuleState":
        """Returns the object that watches a rule.

        Args:
            rule: The rule.
            adopted: Whether another ledger accounts for the state that the rule already has.

        Raises:
            ValueError: If a rule that no run of this process has used has made steps.
        """
        if rule not in _watched:
            if not adopted and any(map(_has_moved, rule.state.values())):
                raise ValueError(
                    "Expected a rule that has made no step, but its state holds moments of earlier steps, "
                    "which the ledger of a new run does not know. Continue the run that made them by "
                    "adamas.load or run.load_state_dict, or make a new rule."
                )
            _watched[rule] = cls(rule)
        return _watched[rule]

    def check(self) -> None:
        """Raises if a state was loaded from elsewhere."""
        if self._foreign:
            raise RuntimeError(
                "A state was loaded into the rule (rule.load_state_dict) whose releases are not in this "
                "run's ledger: its epsilon would be too low. Continue the run that made them by "
                f"{self.remedy}, which also restores the rule."
            )

    @contextmanager
    def accepted(self) -> Iterator[None]:
        """Loads a state together with the ledger that it belongs to."""
        yield
        self._foreign = False

    def _notice(self) -> None:
        self._foreign = True


def _has_moved(state: dict[str, Any]) -> bool:
    """Tells whether a rule has made steps, from the state of one parameter."""
    if "step" in state:
        return float(state["step"]) > 0
    moments = (state.get(name) for name in _MOMENTS)
    return any(bool(value.any()) for value in moments if isinstance(value, torch.Tensor))


_watched: "weakref.WeakKeyDictionary[torch.optim.Optimizer, RuleState]" = weakref.WeakKeyDictionary()
