"""Defaults for tables, which `benchmarks/tables.py` chose by held-out trials."""

EPOCHS = 20
"""Passes over the rows."""

SCHEDULE = "linear"
"""The learning rate falls to 0."""

RULE = "adam-bc"
"""The rule of `adamas.rules`."""

CLASSES_RATE, NUMBERS_RATE = 0.1, 0.03
"""Learning rates of the rule for classes, and for numbers, whose squared errors the noise harms more."""

BATCH_SHARE = 0.1
"""The expected share of the rows in a batch."""
