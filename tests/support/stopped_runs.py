"""Stops a run in the middle, and reads its weights and its ledger."""

import torch


def stopped(run, after):
    """Runs until step `after` is done, and returns the run."""
    for step in run:
        if step.number == after:
            break
    return run


def parameters(run):
    """Returns a copy of all weights of the run's model, as one vector."""
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()


def counted(run):
    """Counts each event of the run's ledger."""
    result = {}
    for event, count in run.ledger.entries:
        result[repr(event)] = result.get(repr(event), 0) + count
    return result
