"""Experiments: one training from settings to files, sweeps within one budget, activations computed once."""

from adamas.experiment.training import Settings, accuracy, cross_entropy, private_run, train_and_save

__all__ = ["Settings", "accuracy", "cross_entropy", "private_run", "train_and_save"]
