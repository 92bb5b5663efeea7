"""A small synthetic table of patients: numbers, a category, missing values, and two targets."""

import numpy as np
import pandas as pd

BOUNDS = {"age": (0, 120), "pressure": (50, 250)}
CATEGORIES = {"ward": ["A", "B", "C"]}
GIVEN = {"bounds": BOUNDS, "categories": CATEGORIES}
FAST = {"accountant": "rdp", "noise": "reproducible", "random_state": 0}


def patients(rows=300, seed=0):
    """Returns a table, its labels 0 and 1, and a number to predict between 0 and 10."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": random.uniform(20, 90, rows),
            "pressure": random.normal(130, 20, rows),
            "ward": random.choice(["A", "B", "C"], rows),
        }
    )
    risk = (table["age"] - 55) / 20 + (table["ward"] == "C")
    table.loc[random.random(rows) < 0.1, "pressure"] = np.nan
    labels = (risk + random.normal(0, 0.3, rows) > 0).astype(int).to_numpy()
    return table, labels, np.clip(5 + 2 * risk, 0, 10).to_numpy()
