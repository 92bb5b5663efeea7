"""Trains with Lightning in a process of its own for each seed, and kills it (`kill -9`) after some steps.

python -m tests.support.killed_fits FOLDER STEPS
"""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from tests.support import lightning_fits as fits


class Killer(pl.Callback):
    """Notes each release, and ends the process after some of them."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        run = trainer.strategy.run
        (self._folder / "epsilon").write_text(str(run.epsilon()))
        if run.steps_done == self._steps:
            os.kill(os.getpid(), signal.SIGKILL)


def saver(folder: Path) -> pl.callbacks.ModelCheckpoint:
    return pl.callbacks.ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=4, save_top_k=-1, save_last=True
    )


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in (3, None):
        folder = Path(sys.argv[1]) / str(seed)
        folder.mkdir(parents=True)
        process = os.fork()
        if process == 0:
            trainer = fits.trainer(
                folder, private={"seed": seed}, callbacks=[saver(folder), Killer(folder, int(sys.argv[2]))]
            )
            trainer.fit(fits.Classifier(), fits.loader(), fits.public())
            os._exit(0)
        _, status = os.waitpid(process, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status


if __name__ == "__main__":
    main()
