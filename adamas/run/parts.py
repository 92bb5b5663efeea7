"""The parts of a run, and what they show at no privacy cost: geometry, costs, diagnostics, the guarantee."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from adamas import diagnostics
from adamas._guards.state import unchanged
from adamas.accounting import Spending
from adamas.engines import ENGINES, Bookkeeping, Loss, trainable_parameters
from adamas.engines.explain import Explanation
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry
from adamas.loading import Loader
from adamas.noise import Noise
from adamas.privatize import PrivateGradient
from adamas.rules.accelerated import plain_rule
from adamas.rules.base import Rule
from adamas.run.accounted import Accounted
from adamas.run.preconditions import check_parameters
from adamas.run.randomness import model_randomness
from adamas.run.release_metrics import release_metrics
from adamas.run.rule_state import RuleState
from adamas.run.statement import privacy_statement


class RunParts(Accounted):
    """Model, rule, loss, loader, noise and engine of a run.

    Attributes:
        model: The user's model.
        loss: The loss of each example.
        loader: Loads the batches that its sampler draws.
        noise: The noise of the releases.
        engine: The name of the engine.
        make_engine: Makes the engine of a micro-batch.
        clip_norm: Factor of the rule's geometry.
        scheduler: Sets the learning rate of the rule; None for a constant one.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: torch.optim.Optimizer,
        loss: Loss,
        loader: Loader,
        noise: Noise,
        engine: str,
        clip_norm: float,
        spending: Spending,
        scheduler: LRScheduler | None,
        raw: bool,
    ) -> None:
        super().__init__(spending)
        self.model, self.loss = model, loss
        self.loader, self.noise = loader, noise
        self.engine, self.make_engine = engine, ENGINES[engine]
        self.clip_norm = clip_norm
        self.scheduler = scheduler
        self._rule, self._rule_state = rule, RuleState.of(rule)
        self._raw_moments = diagnostics.RawMoments(rule) if raw else None
        self._last_release: PrivateGradient | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the data on average: ceil(N/batch_size) for most samplers."""
        return self.loader.sampler.steps_per_epoch()

    @property
    def rule(self) -> torch.optim.Optimizer:
        """The optimizer. It may be replaced by another one over the model's trainable parameters."""
        return self._rule

    @rule.setter
    def rule(self, rule: torch.optim.Optimizer) -> None:
        rule = plain_rule(rule)
        check_parameters(self.model, rule)
        if self.scheduler is not None and self.scheduler.optimizer is not rule:
            raise ValueError(
                "Expected run.scheduler to belong to the new rule. Set run.scheduler to None first, and to a "
                "scheduler of the new rule afterwards."
            )
        if rule is not self._rule and self._raw_moments is not None:
            self._raw_moments = diagnostics.RawMoments(rule)
        self._rule = rule
        self._rule_state = RuleState.of(rule)

    @property
    def raw(self) -> bool:
        """Whether moments without noise are kept, which makes the run not private."""
        return self._raw_moments is not None

    @property
    def private(self) -> bool:
        """False for a run that releases something without noise, whose epsilon is infinite."""
        return self.noise_multiplier > 0 and not self.raw

    def geometry(self) -> Geometry:
        """Returns the geometry of the next release, which is public: the rule's, times the clip norm."""
        if isinstance(self.rule, Rule):
            return self.rule.geometry().scaled(self.clip_norm)
        return Geometry.ball(trainable_parameters(self.model).values(), self.clip_norm)

    def privacy_statement(self) -> str:
        """States the guarantee in words, for a report."""
        epsilon = self.epsilon() if self.private else float("inf")
        return privacy_statement(self._spending, self.noise, epsilon=epsilon, raw=self.raw)

    def explain(self) -> Explanation:
        """Shows which function uses each parameter, how its norms are taken, and its time and memory.

        Tries the first examples of the data set; nothing is recorded or changed. Sizes and times depend on
        the shapes of these examples, such as the length of the longest text: share the result only with
        people cleared to see the data.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.Adam(model.parameters()), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, epochs=1, noise_multiplier=1.0, delta=1e-3)
            >>> run.explain().costs[0].formula
            '|input| |output gradient|'
        """
        sampler = self.loader.sampler
        examples = min(sampler.dataset_size, self.loader.micro_batch_size or sampler.batch_size)
        rows = np.arange(examples)
        with unchanged(self.model, self.loss), model_randomness(self.noise.seed, self.steps_done):
            data = self.loader.check(self.loader.fetch(rows), rows)
            try:
                Bookkeeping(self.model, self.loss, data).norms(self.geometry())  # probes, warms up
                explanation = Bookkeeping(self.model, self.loss, data).explain(self.geometry())
            except UnsupportedError as error:
                return Explanation(self.engine, str(error), examples, 0.0, [])
        return replace(explanation, engine=self.engine)

    def metrics(self) -> dict[str, float]:
        """Returns public numbers for a log of the training, at every step.

        Returns:
            "step" and "epoch", both done so far; "epsilon", the bound of `epsilon_bound()`; "delta";
            "noise_multiplier"; "lr", of the rule's first group; and of the last release: "release_norm";
            "noise_norm", the root mean square of the norm of its noise; and "signal_to_noise", the estimate
            sqrt(max(release_norm² - noise_norm², 0)) / noise_norm. Before the first release these three are
            missing.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.Adam(model.parameters(), lr=0.1), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-3)
            >>> for _ in run: pass
            >>> seen = run.metrics()
            >>> seen["step"], seen["epoch"], seen["lr"], round(seen["noise_norm"], 3)
            (3, 0.6, 0.1, 0.245)
            >>> seen["epsilon"] == run.epsilon()
            True
        """
        seen: dict[str, float] = {
            "step": self.steps_done,
            "epoch": self.steps_done / self.steps_per_epoch,
            "epsilon": self.epsilon_bound() if self.private else math.inf,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "lr": float(self.rule.param_groups[0]["lr"]),
        }
        return seen if self._last_release is None else seen | release_metrics(self._last_release)

    def diagnostics(self, *, raw: bool = False, histograms: bool = False) -> dict[str, Any]:
        """Describes what the rule did, from its own state, at no privacy cost.

        Args:
            raw: Add the comparison with moments without noise, under "raw": for a run that was made with
                `make_private(..., raw=True)`, which is not private.
            histograms: Add distributions over all coordinates.

        Returns:
            Plain numbers: "step", "private", "overall" and "layers", as `adamas.diagnostics.diagnose`
            explains them, with the center measured in the run's clipping; "histograms" as
            `adamas.diagnostics.histograms` does.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.AdamBC(model.parameters()), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, steps=3, noise_multiplier=100.0, delta=1e-3)
            >>> for _ in run: pass
            >>> seen = run.diagnostics()
            >>> seen["private"], seen["overall"]["on_floor"], sorted(seen["layers"])
            (True, 1.0, ['bias', 'weight'])
        """
        if raw and self._raw_moments is None:
            raise ValueError(
                "Expected raw=False: this run keeps no moments without noise. Make it with "
                "make_private(..., raw=True); it is then not private, and its epsilon is infinite."
            )
        result: dict[str, Any] = {"step": self.steps_done, "private": self.private}
        seen = diagnostics.diagnose(self.rule, self.model, geometry=self.geometry())
        result |= {"overall": seen["overall"], "layers": seen["layers"]}
        if histograms:
            result["histograms"] = diagnostics.histograms(self.rule)
        if raw and self._raw_moments is not None:
            result["raw"] = self._raw_moments.compare(self.model, histograms=histograms)
        return result
