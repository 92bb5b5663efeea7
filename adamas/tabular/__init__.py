"""Private training on tables: scikit-learn estimators, and tables in files.

Needs the extra `tables`: `pip install 'adamas[tables]'`.
"""

try:
    import pandas  # noqa: F401
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"adamas.tabular needs {error.name}, which is not installed. Run: pip install 'adamas[tables]'",
        name=error.name,
    ) from error

from adamas.tabular.classifier import PrivateClassifier
from adamas.tabular.regressor import PrivateRegressor
from adamas.tabular.schema import Category, Number, Schema
from adamas.tabular.scores import class_scores, number_scores

__all__ = [
    "Category",
    "Number",
    "PrivateClassifier",
    "PrivateRegressor",
    "Schema",
    "class_scores",
    "number_scores",
]
