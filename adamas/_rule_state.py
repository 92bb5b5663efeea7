"""The state of a rule belongs to the releases that made it, and so to one ledger.

Trainers restore optimizers by themselves. A run that goes on from such a state would build on releases that
its ledger does not know, and state an epsilon that is too low.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def check_fresh(rule: torch.optim.Optimizer) -> None:
    """Raises if a rule has made steps before."""
    if any(rule.state.values()):
        raise ValueError(
            "Expected a rule that has made no step, but its state holds moments of earlier steps, which the "
            "ledger of a new run does not know. Continue a run by adamas.load or run.extend, or make a new "
            "rule."
        )


class RuleState:
    """Notices when somebody else than the run loads a state into its rule."""

    def __init__(self, rule: torch.optim.Optimizer) -> None:
        self._foreign = False
        noticed = weakref.WeakMethod(self._notice)

        def loaded(_: torch.optim.Optimizer) -> None:
            notice = noticed()
            if notice is not None:
                notice()

        self._hook = rule.register_load_state_dict_post_hook(loaded)

    def check(self) -> None:
        """Raises if a state was loaded from elsewhere."""
        if self._foreign:
            raise RuntimeError(
                "A state was loaded into the rule (rule.load_state_dict) whose releases are not in this "
                "run's ledger: its epsilon would be too low. Continue the run that made them by adamas.load "
                "or run.load_state_dict, which restore the rule, too."
            )

    @contextmanager
    def accepted(self) -> Iterator[None]:
        """Loads a state together with the ledger that it belongs to."""
        yield
        self._foreign = False

    def forget(self) -> None:
        """Stops watching."""
        self._hook.remove()

    def _notice(self) -> None:
        self._foreign = True
