"""Experiments: one training from settings to files, sweeps within one budget, cached activations."""

from adamas.experiment.settings import Settings
from adamas.experiment.task import accuracy, cross_entropy
from adamas.experiment.training import private_run, train_and_save

__all__ = ["Settings", "accuracy", "cross_entropy", "private_run", "train_and_save"]
