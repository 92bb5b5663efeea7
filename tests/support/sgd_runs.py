"""Make short private runs of SGD for any model, loss and data.

`small_runs.py` has the loss and the data that a run gets by default.
"""

import adamas
from adamas import rules
from tests.support.small_runs import loss as cross_entropy
from tests.support.small_runs import make_data


def make_run(model, loss=cross_entropy, data=None, **changes):
    """Makes a run of SGD for six steps; `changes` replace options of `adamas.make_private`."""
    options = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0} | changes
    rule = rules.SGD(model.parameters(), lr=0.1)
    return adamas.make_private(model, rule, data or make_data(40), loss, **options)
