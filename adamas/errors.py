"""Defines the error classes and the warnings of the package.

Values out of range raise `ValueError`, objects of the wrong kind raise `TypeError`.
"""


class UnsupportedError(ValueError):
    """A model, loss, engine or data set for which the guarantee cannot be kept.

    It is well-formed, but would make the private gradient wrong, so it is refused.

    Example:
        >>> import torch, adamas
        >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2))
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        >>> try:
        ...     adamas.make_private(
        ...         model, adamas.rules.SGD(model.parameters()), data,
        ...         lambda model, batch: model(batch[0]).square().sum(1),
        ...         batch_size=10, steps=1, epsilon=1.0, delta=1e-3)
        ... except adamas.UnsupportedError as error:
        ...     print(str(error)[:55])
        0 is a BatchNorm1d that normalises over the batch, so a
    """


class BudgetError(RuntimeError):
    """A release that would exceed the privacy budget, so it is not made.

    Example:
        >>> import torch, adamas
        >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2))
        >>> model = torch.nn.Linear(2, 1)
        >>> run = adamas.make_private(
        ...     model, adamas.rules.SGD(model.parameters()), data,
        ...     lambda model, batch: model(batch[0]).square().sum(1),
        ...     batch_size=10, steps=1, epsilon=1.0, delta=1e-3, accountant="rdp")
        >>> try:
        ...     for batch in run.batches():
        ...         first = run.privatize(batch)  # for which the noise was calibrated
        ...         second = run.privatize(batch)
        ... except adamas.BudgetError as error:
        ...     print(str(error).partition(",")[0])
        This release would exceed epsilon=1 at delta=0.001
    """


class DistributedError(RuntimeError):
    """The ranks of a data-parallel run cannot go on together: one failed, ended, or differs.

    Example:
        >>> import adamas
        >>> def interrupted_run():  # stands for a run in which the process of rank 1 ends
        ...     yield "step 1"
        ...     raise adamas.DistributedError("Rank 0 of 2 cannot reach the others.")
        >>> try:
        ...     for step in interrupted_run():
        ...         print(step)
        ... except adamas.DistributedError as error:
        ...     print(f"{error} Start all ranks again, with resume=True.")
        step 1
        Rank 0 of 2 cannot reach the others. Start all ranks again, with resume=True.
    """


class SlowEngineWarning(UserWarning):
    """The fast engine cannot follow a model: a slower one computes the same, example by example."""


class EvaluationModeWarning(UserWarning):
    """Warns that a whole model is in evaluation mode, so its dropout is off. Its privacy is the same."""
