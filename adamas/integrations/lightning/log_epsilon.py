"""Logs epsilon as an upper bound in all places: loggers and progress bars would round it to the nearest."""

import math

import lightning.pytorch as pl
import torch

from adamas._words import in_float32, rounded_up


def log_epsilon(module: pl.LightningModule, bound: float) -> None:
    """Logs a bound on the epsilon so far: "epsilon" for loggers and callbacks, "eps" for progress bars.

    Both names are ASCII: a bar that standard output cannot encode would end the training.

    Args:
        module: The module in training.
        bound: The bound.
    """
    logged = torch.tensor(in_float32(bound), dtype=torch.float32, device=module.device)
    module.log("epsilon", logged, on_step=True, on_epoch=False, batch_size=1)
    module.log(
        "eps", shown_in_bars(bound), prog_bar=True, logger=False, on_step=True, on_epoch=False, batch_size=1
    )


def log_last_epsilon(trainer: pl.Trainer, bound: float) -> None:
    """Gives the loggers the bound of the last step, if they were not due there.

    Args:
        trainer: The Trainer, at the end of a training.
        bound: The bound.
    """
    every, steps = int(getattr(trainer, "log_every_n_steps", 0)), trainer.global_step
    if every and steps % every:
        for logger in trainer.loggers:
            logger.log_metrics({"epsilon": in_float32(bound)}, step=steps - 1)  # as Lightning counts


def shown_in_bars(bound: float) -> float:
    """Returns a bound, rounded up to what the bars show: three digits (tqdm), and three decimals (rich).

    Example:
        >>> [shown_in_bars(bound) for bound in (0.01234, 0.1234, 1.234, 12.34, 1234.0, math.inf)]
        [0.013, 0.124, 1.24, 12.4, 1240.0, inf]
    """
    if not 0 < bound < math.inf:
        return bound
    return float(rounded_up(bound, min(3, 2 - math.floor(math.log10(bound)))))
