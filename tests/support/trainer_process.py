"""Trains privately in a process of its own, and kills it after a step: `python -m ... FOLDER SEED STEP`."""

import os
import signal
import sys

from transformers import TrainerCallback

from tests.support.tiny_trainers import trainer


class Kill(TrainerCallback):
    """Ends the process as `kill -9` does, after a step and before anything that follows it."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def privacy(seed):
    return {"epsilon": 3.0, "accountant": "rdp", "seed": seed}


if __name__ == "__main__":
    folder, seed, step = sys.argv[1:]
    trainer(
        folder, privacy=privacy(int(seed) if seed != "none" else None), callbacks=[Kill(int(step))]
    ).train()
