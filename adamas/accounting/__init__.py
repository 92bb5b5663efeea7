"""Privacy accounting: what a run may release, what it has released, and what that costs.

In reading order, each file on top of those before it:

    events              events of `dp_accounting`: counted, compared, simplified, as plain data
    loss_distributions  the privacy loss distribution of one event
    privacy_loss        many of them, composed with a bound on all rounding
    composition         the epsilon of recorded events, by an accountant
    ledger              `Ledger`: the events of everything that was released
    budget              how many more releases an (epsilon, delta) pays for
    calibrate           from a budget to noise or steps, and back
    accounts            the rows of a data set's ledger
    data_ledger         `DataLedger`: what all runs on one data set have spent together
    journal             releases on disk, before they are made
    journals            all journals of one run, written together
    plan                what a run may release
    recovery            releases of processes that died, compared and recorded
    reservation         a run's account in its data set's ledger
    spending            `Spending`: owns all of these for one run, and charges each release
"""

from adamas.accounting.plan import Plan
from adamas.accounting.spending import Spending

__all__ = ["Plan", "Spending"]
