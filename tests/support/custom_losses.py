"""Make small private runs with a loss of the test's own."""

import adamas
from adamas import rules
from tests.support.small_runs import make_data, make_model


def make_run_with(loss, model=None, rule=None, data=None, **changes):
    """Makes a run of SGD for four steps; `changes` replace options of `adamas.make_private`."""
    model = model or make_model()
    rule = rule or rules.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": 12, "steps": 4, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 7} | changes
    return adamas.make_private(model, rule, make_data() if data is None else data, loss, **options)
