"""Callbacks watch a run: `make_private(..., callbacks=[...])` calls each of them after each step.

A callback is any function `callback(run, step)`. Those in this package write `run.metrics()`, which is
public, to a tracker, or stop the run. In a data-parallel run every rank calls them, and one rank writes.

base            the parts of a run and of a step that callbacks use
trackers        TensorBoard, Weights & Biases, MLflow
early_stopping  stops when a score on other data no longer rises
paid_score      a score on private validation data, with noise and a ledger of its own
"""

from adamas.callbacks.base import Callback
from adamas.callbacks.early_stopping import EarlyStopping
from adamas.callbacks.paid_score import PaidScore
from adamas.callbacks.trackers import MLflow, TensorBoard, WandB

__all__ = ["Callback", "EarlyStopping", "MLflow", "PaidScore", "TensorBoard", "WandB"]
