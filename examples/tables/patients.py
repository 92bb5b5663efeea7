"""Trains privately on a table of patients: which of them return within a month?

    pip install 'adamas[tables]'
    python examples/tables/patients.py

This script draws a synthetic table, and writes it to a CSV file. To train on it from the command line:

    adamas train --data patients.csv --schema examples/tables/patients.toml --epsilon 3
"""

import os

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from adamas.tabular import PrivateClassifier

FILE = os.environ.get("FILE", "patients.csv")
ROWS = int(os.environ.get("ROWS", "5000"))
EPSILON = 3.0

# Public knowledge, not read off this table. patients.toml has the same for the command line.
BOUNDS = {"age": (0, 120), "pressure": (50, 250), "days": (0, 60), "visits": (0, 20)}
CATEGORIES = {"ward": ["surgery", "cardiology", "oncology", "other"], "insured": ["yes", "no"]}


def patients(rows: int) -> pd.DataFrame:
    """Draws a table. One patient in five returns, and one value in ten is missing."""
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": random.normal(60, 18, rows).clip(0, 110).round(),
            "pressure": random.normal(135, 20, rows).round(),
            "days": random.exponential(6, rows).round(),
            "visits": random.poisson(1.2, rows),
            "ward": random.choice(CATEGORIES["ward"], rows, p=[0.4, 0.25, 0.15, 0.2]),
            "insured": random.choice(["yes", "no"], rows, p=[0.9, 0.1]),
        }
    )
    risk = 0.03 * (table["age"] - 60) + 0.12 * table["days"] + 0.5 * table["visits"] - 3.2
    risk += table["ward"].map({"cardiology": 0.6, "oncology": 1.2}).fillna(0)
    table["returned"] = np.where(random.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no")
    for column in ("pressure", "days"):
        table.loc[random.random(rows) < 0.1, column] = np.nan
    return table


def root(days: pd.DataFrame) -> pd.DataFrame:
    """Transforms each value by itself: a fitted scaler would read statistics that no budget pays for."""
    return days.clip(lower=0) ** 0.5


def main() -> None:
    """Writes the table, trains on four fifths of its rows, and scores the model on the others."""
    patients(ROWS).to_csv(FILE, index=False)
    table = pd.read_csv(FILE)
    x, y = table.drop(columns="returned"), table["returned"]
    train = np.arange(len(table)) % 5 > 0

    model = PrivateClassifier(EPSILON, bounds=BOUNDS, categories=CATEGORIES, classes=["no", "yes"])
    model.fit(x[train], y[train])
    print(model.privacy_statement_)
    show("given bounds", model.evaluate(x[~train], y[~train]))  # of test rows: not private

    model.set_params(bounds="private").fit(x[train], y[train])  # a second budget
    ages, *_ = model.schema_.columns
    show(f"paid bounds (age: {ages.low:g} to {ages.high:g})", model.evaluate(x[~train], y[~train]))

    days = ColumnTransformer(
        [("root", FunctionTransformer(root), ["days"])],
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    bounds = BOUNDS | {"days": (0, 60**0.5)}
    pipeline = make_pipeline(days, model.set_params(bounds=bounds)).fit(x[train], y[train])  # a third one
    show("with a pipeline", pipeline[-1].evaluate(days.transform(x[~train]), y[~train]))


def show(title: str, scores: dict[str, float]) -> None:
    """Prints scores beside those of constant predictions."""
    print(
        f"{title}: accuracy {scores['accuracy']:.1%} (majority {scores['majority_accuracy']:.1%}), "
        f"AUC {scores['auc']:.3f}, Brier score {scores['brier']:.3f} (shares {scores['prior_brier']:.3f})"
    )


if __name__ == "__main__":
    main()
