"""The base of the estimators: trains a model on a table within a budget, and keeps what it cost."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas.accounting.ledger import Ledger
from adamas.check.unusable import Unusable
from adamas.engines import Loss
from adamas.rules import RULES
from adamas.run.make import make_private
from adamas.run.options import RunOptions
from adamas.run.schedules import SCHEDULES, scheduler_of
from adamas.tabular.defaults import BATCH_SHARE
from adamas.tabular.encoding import encode, numbers
from adamas.tabular.given import given_schema, with_bounds
from adamas.tabular.network import network
from adamas.tabular.payment import Payment
from adamas.tabular.statistics import bounds_of, histogram, released
from adamas.tabular.tables import as_table, check_columns, row_weights

_CHUNK = 4096  # rows that are predicted at once
_LARGEST_DELTA = 1e-5
_LARGEST_WEIGHT = 1e30  # gradients that are this large are clipped, and float32 holds them


@dataclass
class Task:
    """A target as an estimator reads it, before anything is spent.

    Attributes:
        labels: The target as the loss reads it; NaN or -1 where it is unknown.
        usable: Which rows have a target.
        loss: The loss of each row.
        outputs: Outputs of the model.
        histograms: Private statistics of the target to pay for.
        settle: Takes these statistics with noise, and the noise's standard deviation; returns the labels and
            a factor for the weight of each row.
    """

    labels: np.ndarray
    usable: np.ndarray
    loss: Loss
    outputs: int
    histograms: list[np.ndarray]
    settle: Callable[[list[np.ndarray], float], tuple[np.ndarray, np.ndarray]]


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators; see `PrivateClassifier`."""

    # The parameters are those of the estimators, whose signatures scikit-learn reads.
    epsilon: float
    delta: float | None
    bounds: Any
    categories: Any
    hidden_layer_sizes: Any
    statistics_share: float
    rule: str
    learning_rate: float | None
    rule_options: Mapping[str, Any] | None
    schedule: str
    epochs: int
    batch_size: int | None
    clip_norm: float
    noise: str | None
    accountant: str
    data_ledger: Any
    random_state: Any
    progress: bool | None

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        fitted = copy.copy(self)
        fitted._train(X, y, sample_weight)
        self.__dict__ = fitted.__dict__  # all at once: what stops the training leaves what was fitted before
        return self

    def _train(self, X: Any, y: Any, sample_weight: Any) -> None:
        table = self._table(X, y)
        rows = len(table)
        check_consistent_length(table, y)
        schema, unbounded = given_schema(table, self.bounds, self.categories)
        check_columns(table, schema)
        task = self._task(y)
        weights = row_weights(sample_weight, rows)
        weights[~task.usable] = np.nan
        seed = self._seed()
        hidden = self._hidden()
        options = self._options(rows, seed)
        model = network(schema.width, hidden, task.outputs, seed)
        rule = self._rule(model)
        asked = [histogram(numbers(table[name])) for name in unbounded] + task.histograms
        payment: Payment | None = None
        counts: list[np.ndarray] = []
        deviation = 0.0
        if asked:  # nothing was spent so far
            payment = Payment.made(model, rule, task.loss, options, rows, self.statistics_share)
            options = payment.options
            counts, deviation = released(asked, payment.event, payment.ledger, seed)
        found = {name: bounds_of(c, deviation) for name, c in zip(unbounded, counts, strict=False)}
        schema = with_bounds(schema, found)
        labels, factors = task.settle(counts[len(unbounded) :], deviation)
        dataset = _dataset(encode(table, schema), labels, weights * factors)
        run = make_private(model, rule, dataset, task.loss, **vars(options))
        for _ in run:
            pass
        if payment is not None:
            payment.settle(run.ledger.entries)
        self.schema_ = schema
        self.model_ = model.double()
        self.epsilon_, self.delta_ = run.epsilon(), run.delta
        self.noise_multiplier_, self.n_steps_ = run.noise_multiplier, run.steps_done
        self.ledger_ = Ledger.of(run.ledger.entries, run.ledger.relation)
        self.privacy_statement_ = run.privacy_statement()
        if payment is not None:
            self.privacy_statement_ += payment.words(len(asked))

    def _task(self, y: Any) -> Task:
        raise NotImplementedError

    def _table(self, X: Any, y: Any) -> pd.DataFrame:
        texts = self.categories if isinstance(self.categories, Mapping) else ()
        table = as_table(X, texts)
        validate_data(self, X, y, reset=True, skip_check_array=True)
        return table

    def _outputs(self, X: Any) -> np.ndarray:
        """Computes the outputs of the model, in float64."""
        check_is_fitted(self)
        names = [column.name for column in self.schema_.columns]
        table = as_table(X, names)
        validate_data(self, X, reset=False, skip_check_array=True)
        table = table.set_axis(names, axis="columns")
        check_columns(table, self.schema_, fitted=True)
        inputs = encode(table, self.schema_)
        with torch.no_grad():
            parts = [self.model_(part.double()) for part in torch.split(torch.from_numpy(inputs), _CHUNK)]
        return torch.cat(parts).numpy()

    def _options(self, rows: int, seed: int | None) -> RunOptions:
        noise = self.noise if self.noise is not None else ("secure" if seed is None else "reproducible")
        _validate.one_of(SCHEDULES, schedule=self.schedule)
        delta = public_delta(rows) if self.delta is None else self.delta
        _validate.delta(delta=delta)
        if delta >= 1 / rows:
            raise ValueError(
                f"Expected delta={delta!r} < 1/N = {1 / rows:.3g} for N = {rows} rows: with more, publishing "
                "a random row would count as private. Lower delta, or leave it out."
            )
        return RunOptions(
            epsilon=self.epsilon,
            delta=delta,
            epochs=self.epochs,
            batch_size=public_batch_size(rows) if self.batch_size is None else min(self.batch_size, rows),
            clip_norm=self.clip_norm,
            seed=seed,
            noise=noise,
            accountant=self.accountant,
            scheduler=scheduler_of(self.schedule),
            data_ledger=self.data_ledger,
            progress=self.progress,
        )

    def _rule(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        _validate.one_of(RULES, rule=self.rule)
        options = dict(self.rule_options or {})
        if self.learning_rate is not None:
            options["lr"] = self.learning_rate
        return RULES[self.rule](model.parameters(), **options)

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return (sizes,) if isinstance(sizes, int) else tuple(sizes)

    def _seed(self) -> int | None:
        if self.random_state is None:
            return None
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise TypeError(
                f"Expected random_state={self.random_state!r} to be None, for secret randomness from the "
                "operating system, or a whole number."
            )
        return int(self.random_state)

    def count_unusable(self, X: Any, y: Any, sample_weight: Any = None) -> Unusable:
        """Counts the rows that take no part in a training. NOT PRIVATE, and for the owner of the data.

        Such a row has no target, a label that is not a known class, or a weight that is not a number >= 0.
        Values of columns make no row unusable. The count does not change what `fit` does.
        """
        counted = copy.copy(self)  # keeps what was fitted
        table = counted._table(X, y)
        check_consistent_length(table, y)
        weights = row_weights(sample_weight, len(table))
        weights[~counted._task(y).usable] = np.nan
        return Unusable(int(np.isnan(weights).sum()), len(table))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags


def public_delta(rows: int) -> float:
    """Returns the delta for a number of rows, which is public: 1e-5, or a tenth of 1/N if that is less."""
    return min(_LARGEST_DELTA, 0.1 / rows)


def public_batch_size(rows: int) -> int:
    """Returns the batch size for a number of rows, which is public: a tenth of them."""
    return math.ceil(rows * BATCH_SHARE)


def _dataset(inputs: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> TensorDataset:
    kind = torch.float32 if labels.dtype == np.float64 else torch.int64
    unusable = np.isnan(weights)
    y = torch.from_numpy(np.where(unusable, 0, labels)).to(kind)
    held = np.minimum(weights, _LARGEST_WEIGHT)  # NaN stays
    return TensorDataset(torch.from_numpy(inputs), y, torch.from_numpy(held).float())
