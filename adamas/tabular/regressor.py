"""A private regressor for tables, as a scikit-learn estimator."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from adamas.tabular import defaults
from adamas.tabular.base import PrivateEstimator, Task
from adamas.tabular.encoding import from_unit, numbers, to_unit
from adamas.tabular.given import PRIVATE
from adamas.tabular.network import squared_loss
from adamas.tabular.schema import checked_bounds
from adamas.tabular.scores import check_any, number_scores
from adamas.tabular.statistics import bounds_of, histogram
from adamas.tabular.tables import as_target


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Linear regression, or a network with hidden layers, trained with differential privacy on a table.

    The target and the predictions are clipped to `target_bounds`. All else is as in `PrivateClassifier`.

    Args:
        epsilon: The budget of one `fit`.
        delta: The delta of the guarantee; None for 1e-5, or 0.1/N if that is less.
        target_bounds: The usual range of the target, to which it is clipped; or "private", which pays for
            noisy bounds from the budget.
        bounds: As in `PrivateClassifier`, like all arguments below.
        categories: The values of columns that are not numeric.
        hidden_layer_sizes: Units of the hidden layers; none for linear regression.
        statistics_share: The share of epsilon that pays for private bounds.
        rule: A name in `adamas.rules.RULES`.
        learning_rate: Of the rule.
        rule_options: Other arguments of the rule.
        schedule: How the learning rate changes: "constant", or to 0 by "linear" or "cosine".
        epochs: Passes over the rows.
        batch_size: Expected rows of a step; None for a tenth of the rows.
        clip_norm: Radius to which a row's gradient is clipped.
        noise: "reproducible", "secure" or None.
        accountant: "pld" or "rdp".
        data_ledger: The ledger of the data set, or its file.
        random_state: None for secret randomness.
        progress: Show a progress bar.

    Attributes:
        target_bounds_: The bounds of the target.
        epsilon_, delta_: What `fit` spent; all others as in `PrivateClassifier`.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 1, 1000)[:, None]
        >>> model = PrivateRegressor(
        ...     epsilon=3.0, bounds=(0, 1), target_bounds=(0, 10), accountant="rdp", random_state=0)
        >>> bool(model.fit(x, 2 + 6 * x[:, 0]).score(x, 2 + 6 * x[:, 0]) > 0.9)
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        target_bounds: Any = None,
        bounds: Any = None,
        categories: Any = None,
        hidden_layer_sizes: Sequence[int] = (),
        statistics_share: float = 0.1,
        rule: str = defaults.RULE,
        learning_rate: float | None = defaults.NUMBERS_RATE,
        rule_options: Mapping[str, Any] | None = None,
        schedule: str = defaults.SCHEDULE,
        epochs: int = defaults.EPOCHS,
        batch_size: int | None = None,
        clip_norm: float = 1.0,
        noise: str | None = None,
        accountant: str = "pld",
        data_ledger: Any = None,
        random_state: int | None = None,
        progress: bool | None = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.target_bounds = target_bounds
        self.bounds = bounds
        self.categories = categories
        self.hidden_layer_sizes = hidden_layer_sizes
        self.statistics_share = statistics_share
        self.rule = rule
        self.learning_rate = learning_rate
        self.rule_options = rule_options
        self.schedule = schedule
        self.epochs = epochs
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.noise = noise
        self.accountant = accountant
        self.data_ledger = data_ledger
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains on a table. A row whose target is no number takes no part.

        Args:
            X: A pandas DataFrame, or an array.
            y: The target.
            sample_weight: A factor of each row's loss. Gradients are clipped after it.
        """
        return self._fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Computes the target of each row."""
        return from_unit(self._outputs(X)[:, 0], *self.target_bounds_)

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Scores the model on test rows, without noise: NOT PRIVATE for these rows.

        Returns:
            "r2", "rmse", "mae" and "mean_rmse" as `number_scores` explains them, and "rows", the number of
            rows with a finite target, which alone are scored.
        """
        truth = numbers(as_target(y))
        known = np.isfinite(truth)
        check_any(known, "target")
        return number_scores(self.predict(X)[known], truth[known]) | {"rows": int(known.sum())}

    def _task(self, y: Any) -> Task:
        target = numbers(as_target(y))
        private = isinstance(self.target_bounds, str) and self.target_bounds == PRIVATE
        if not private:
            if self.target_bounds is None:
                raise ValueError(
                    "Expected target_bounds: the smallest and largest target are private, so nothing is read "
                    "off y. Give target_bounds=(low, high) from what is known in public, or "
                    f"target_bounds={PRIVATE!r}, which pays for noisy ones from the budget."
                )
            self.target_bounds_ = checked_bounds(self.target_bounds, "target_bounds")

        def settle(counts: list[np.ndarray], deviation: float) -> tuple[np.ndarray, np.ndarray]:
            if private:
                self.target_bounds_ = bounds_of(counts[0], deviation)
            return to_unit(target, *self.target_bounds_), np.ones(len(target))

        return Task(
            labels=target,
            usable=~np.isnan(target),
            loss=squared_loss,
            outputs=1,
            histograms=[histogram(target)] if private else [],
            settle=settle,
        )
