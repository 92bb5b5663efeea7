"""Shared by tests: helpers of `stopped_runs`."""

import torch


def stopped(run, after):
    """The run after so many steps."""
    for step in run:
        if step.number == after:
            break
    return run


def parameters(run):
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()


def counted(run):
    """Events and how many times each happened, in any order."""
    result = {}
    for event, count in run.ledger.entries:
        result[repr(event)] = result.get(repr(event), 0) + count
    return result
