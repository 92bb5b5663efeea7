"""Scores predictions on test data: accuracy, AUC, Brier score, and the scores of a constant prediction.

They have no noise, so they reveal information about the scored rows, as all test results do.
"""

import math
from collections.abc import Mapping

import numpy as np
from scipy.stats import rankdata


def check_any(known: np.ndarray, what: str) -> None:
    """Raises unless a row of the test rows is known."""
    if not known.any():
        raise ValueError(f"Expected rows with a known {what} to score, got none among {len(known)} rows.")


def class_scores(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores a classifier.

    Args:
        probabilities: A row for each example, a column for each class.
        labels: The number of the true class of each example.

    Returns:
        "accuracy"; "majority_accuracy", of always predicting the class that is most frequent in `labels`;
        "auc", for more than two classes the mean over the classes, each against all others; "brier", the mean
        squared error of the probabilities, of class 1 if there are two, else summed over all classes;
        "prior_brier", of always predicting the shares of the classes in `labels`. The AUC is NaN if a class
        is absent.

    Example:
        >>> class_scores(np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]), np.array([0, 0, 1]))["auc"]
        1.0
    """
    classes = probabilities.shape[1]
    truth = np.eye(classes)[labels]
    shares = truth.mean(axis=0)
    counted = slice(1, 2) if classes == 2 else slice(None)
    areas = [_area(probabilities[:, k], truth[:, k] > 0) for k in range(classes)[counted]]
    return {
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
        "majority_accuracy": float(shares.max()),
        "auc": float(np.mean(areas)),
        "brier": float(np.square(probabilities - truth)[:, counted].sum(axis=1).mean()),
        "prior_brier": float(np.square(shares - truth)[:, counted].sum(axis=1).mean()),
    }


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Returns the probability that a positive example has a higher score than a negative one; ties half."""
    p, n = int(positive.sum()), int((~positive).sum())
    if not p or not n:
        return math.nan
    return float((rankdata(scores)[positive].sum() - p * (p + 1) / 2) / (p * n))


def number_scores(predictions: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Scores a regression.

    Returns:
        "r2"; "rmse" and "mae", the root of the mean squared error and the mean absolute error; "mean_rmse",
        the "rmse" of always predicting the mean of `truth`.

    Example:
        >>> number_scores(np.array([1.0, 2.0]), np.array([1.0, 3.0]))["mae"]
        0.5
    """
    errors, spread = predictions - truth, float(truth.std())
    rmse = float(np.sqrt(np.square(errors).mean()))
    r2 = 1 - (rmse / spread) ** 2 if spread else math.nan
    return {"r2": r2, "rmse": rmse, "mae": float(np.abs(errors).mean()), "mean_rmse": spread}


def plain(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Returns scores for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in scores.items()}
