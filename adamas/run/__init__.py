"""A private run: `make_private` makes it, iterating trains it, `save` and `load` continue it.

options       every option of a run, with its checks
make          `make_private`: validated, probed and calibrated, in validation, probing and calibration
loop          the run: batches, releases, checkpoints, rehearsals
accounted     its account: plan, ledger, budget
parts         its model, rule, loader, noise and engine, and what they show at no privacy cost
state         its state, and what must agree to continue it
checkpoint    one file of it, and `load`; saved_files: all files of a run
statement     its guarantee in words
preconditions, rule_state, padding   what is checked before and while it trains
"""

from adamas.run.checkpoint import load
from adamas.run.loop import PrivateRun, Step
from adamas.run.make import make_private
from adamas.run.options import RunOptions

__all__ = ["PrivateRun", "RunOptions", "Step", "load", "make_private"]
