"""A private classifier for tables, as a scikit-learn estimator."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from adamas import _validate
from adamas.tabular import defaults
from adamas.tabular.base import PrivateEstimator, Task
from adamas.tabular.encoding import codes_of
from adamas.tabular.network import binary_loss, classes_loss
from adamas.tabular.scores import check_any, class_scores
from adamas.tabular.statistics import class_histogram
from adamas.tabular.tables import as_target, check_kind

PUBLIC = "public"
BALANCED = "balanced"


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Logistic regression, or a network with hidden layers, trained with differential privacy on a table.

    The epsilon holds for adding or removing one row. The number of rows, the names and types of the columns
    and all parameters of the estimator are public. Nothing else is read off the data without noise.

    Args:
        epsilon: The budget of one `fit`. Each `fit` spends it anew, so the fits of a grid search or a
            cross-validation add up; `data_ledger` accounts for them.
        delta: The delta of the guarantee; None for 1e-5, or 0.1/N if that is less.
        bounds: The usual range (low, high) of the numeric columns: one pair for all, or a pair by column
            name. In place of a pair, "private" pays for noisy bounds from the budget. Values are clipped to
            the bounds and scaled by them, so tight bounds train better than wide ones. Columns of an array
            are called x0, x1, ...
        categories: The values of the other columns, by name. In place of values, "dtype" confirms that those
            declared by a pandas categorical type are public; `categories="dtype"` does so for all columns.
            Unknown and missing values share one further category.
        classes: The labels. "public" confirms that the set of labels in `y` is public, and reads it there.
        hidden_layer_sizes: Units of the hidden layers; none for logistic regression.
        class_weight: A weight for each label, 1 if not given; or "balanced", which pays from the budget for
            noisy counts of the classes. Weights are divided by the largest one, so that clipping keeps their
            proportions.
        statistics_share: The share of epsilon that pays for bounds and counts, if any are asked for.
        rule: A name in `adamas.rules.RULES`.
        learning_rate: Of the rule.
        rule_options: Other arguments of the rule.
        schedule: How the learning rate changes: "constant", or to 0 by "linear" or "cosine".
        epochs: Passes over the rows.
        batch_size: Expected rows of a step; None for a tenth of the rows.
        clip_norm: Radius to which a row's gradient is clipped.
        noise: "reproducible" or "secure", see `adamas.make_private`; None for "secure" without a
            `random_state`.
        accountant: "pld" or "rdp".
        data_ledger: The ledger of the data set, or its file, whose budget all fits share.
        random_state: None takes secret randomness from the operating system. A number makes `fit` repeatable,
            and anyone who knows it can remove the noise. Clones of the estimator even share their noise.
        progress: Show a progress bar; None shows it on a terminal.

    Attributes:
        classes_: The labels, sorted.
        epsilon_, delta_: What `fit` spent.
        privacy_statement_: The guarantee in words.
        schema_: The columns, with the bounds and categories that were used.
        ledger_: The releases.
        model_: The trained `torch.nn.Module`.
        noise_multiplier_, n_steps_: Of the training.

    Guarantee:
        All attributes that `fit` sets, and all predictions for public rows, are
        (epsilon_, delta_)-differentially private under adding or removing one row of the training table.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [30.0, 70.0] * 300, "ward": ["A", "B"] * 300})
        >>> model = PrivateClassifier(
        ...     epsilon=3.0, bounds={"age": (0, 120)}, categories={"ward": ["A", "B"]}, classes=[0, 1],
        ...     accountant="rdp", random_state=0)
        >>> model.fit(table, [0, 1] * 300).predict(table[:2]).tolist()
        [0, 1]
        >>> 2.9 < model.epsilon_ <= 3.0
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        bounds: Any = None,
        categories: Any = None,
        classes: Any = None,
        hidden_layer_sizes: Sequence[int] = (),
        class_weight: Mapping[Any, float] | str | None = None,
        statistics_share: float = 0.1,
        rule: str = defaults.RULE,
        learning_rate: float | None = defaults.CLASSES_RATE,
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
        self.bounds = bounds
        self.categories = categories
        self.classes = classes
        self.hidden_layer_sizes = hidden_layer_sizes
        self.class_weight = class_weight
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
        """Trains on a table.

        A row without a known label, or whose weight is not a number >= 0, takes no part. Only
        `count_unusable` shows how many there are.

        Args:
            X: A pandas DataFrame, or an array.
            y: The labels.
            sample_weight: A factor of each row's loss. Gradients are clipped after it.
        """
        return self._fit(X, y, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Computes the logit of the second class if there are two, else one logit for each class."""
        outputs = self._outputs(X)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X: Any) -> np.ndarray:
        """Computes the probability of each class."""
        logits = self.decision_function(X)
        if logits.ndim == 1:
            return np.stack([expit(-logits), expit(logits)], axis=1)
        return np.asarray(softmax(logits, axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """Computes the most likely label of each row."""
        logits = self.decision_function(X)
        places = (logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(axis=1)
        return np.asarray(self.classes_[places])

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Scores the model on test rows, without noise: NOT PRIVATE for these rows.

        Returns:
            "accuracy", "majority_accuracy", "auc", "brier", "prior_brier" as `class_scores` explains them,
            and "rows", the number of rows with a known label, which alone are scored.
        """
        check_kind(y, self.classes_)
        codes = codes_of(as_target(y), self.classes_.tolist())
        check_any(codes >= 0, f"label, one of {self.classes_.tolist()!r},")
        scores = class_scores(self.predict_proba(X)[codes >= 0], codes[codes >= 0])
        return scores | {"rows": int((codes >= 0).sum())}

    def _task(self, y: Any) -> Task:
        labels = as_target(y)
        self.classes_ = self._classes(labels)
        check_kind(y, self.classes_)
        known = self.classes_.tolist()
        codes = codes_of(labels, known)
        weights = self._class_weights(known)
        balanced = self.class_weight == BALANCED
        two = len(known) == 2

        def settle(counts: list[np.ndarray], deviation: float) -> tuple[np.ndarray, np.ndarray]:
            by_class = _relative(1 / np.maximum(counts[0], 1)) if balanced else weights
            return (codes.astype(float) if two else codes), by_class[np.maximum(codes, 0)]

        return Task(
            labels=codes,
            usable=codes >= 0,
            loss=binary_loss if two else classes_loss,
            outputs=1 if two else len(known),
            histograms=[class_histogram(codes, len(known))] if balanced else [],
            settle=settle,
        )

    def _classes(self, labels: np.ndarray) -> np.ndarray:
        if self.classes is None:
            raise ValueError(
                "Expected classes: the set of labels is private, so it is not read off y. Give "
                f"classes=[...], or confirm by classes={PUBLIC!r} that the set of labels in y is public."
            )
        if isinstance(self.classes, str):
            _validate.one_of([PUBLIC], classes=self.classes)
            known = _occurring(labels)
        else:
            known = _different(self.classes)
        if len(known) < 2:
            raise ValueError(f"Expected at least 2 classes, got {len(known)} class: {known.tolist()!r}.")
        return known

    def _class_weights(self, known: list[Any]) -> np.ndarray:
        given = self.class_weight
        if given is None or given == BALANCED:
            return np.ones(len(known))
        if not isinstance(given, Mapping):
            raise ValueError(f"Expected class_weight={given!r} to be weights by label, or {BALANCED!r}.")
        for label, weight in given.items():
            if label not in known:
                raise ValueError(f"Expected class_weight of labels among {known!r}, got one of {label!r}.")
            _validate.non_negative(**{f"class_weight[{label!r}]": weight})
        weights = np.array([float(given.get(label, 1.0)) for label in known])
        if not weights.any():
            raise ValueError(f"Expected class_weight={given!r} to be above 0 for at least one class.")
        return _relative(weights)


def _different(classes: Any) -> np.ndarray:
    """Returns labels that are given, sorted."""
    try:
        given = list(classes)
        known = np.unique(np.asarray(given))
        right = len(known) == len(given) and set(known.tolist()) <= set(given)
    except (TypeError, ValueError):  # no list, or one of labels that have no order
        right = False
    if not right:
        raise ValueError(f"Expected classes={classes!r} to be a list of different labels of one type.")
    return known


def _occurring(labels: np.ndarray) -> np.ndarray:
    """Returns the labels that occur, whose set is public; missing values are not labels."""
    series = pd.Series(labels, dtype=labels.dtype if labels.dtype == object else None)
    found = series.dropna().to_numpy()
    try:
        typed = np.asarray(found.tolist()) if found.dtype == object else found
        same = set(typed.tolist()) == set(found.tolist())
    except (TypeError, ValueError):  # no labels, or of types that NumPy does not join
        same = False
    if not same or typed.ndim != 1 or typed.dtype.kind == "c":
        raise ValueError(f"Expected labels of one type in y, to read them with classes={PUBLIC!r}.")
    check_classification_targets(typed)
    return np.asarray(np.unique(typed))


def _relative(weights: np.ndarray) -> np.ndarray:
    """Divides weights by the largest one."""
    return np.asarray(weights / weights.max())
