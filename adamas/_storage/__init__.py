"""Writes files whole or not at all: any file, tensors with data, the results of a run."""
