"""Make samplers of 100 records, and record their releases in a ledger."""

from adamas import Ledger, sampling

DELTA = 1e-5


def poisson():
    return sampling.Poisson(dataset_size=100, batch_size=10, seed=0)


def truncated():
    return sampling.TruncatedPoisson(dataset_size=100, batch_size=10, max_batch_size=20, seed=0)


def shuffled():
    return sampling.Shuffled(dataset_size=100, batch_size=40, seed=0)


def ledger_of(*releases, sampler=None):
    """Records releases, given as (step, noise multiplier), of Poisson batches or of a sampler."""
    sampler = sampler or poisson()
    ledger = Ledger(sampler.relation)
    for step, z in releases:
        ledger.record_release(sampler, step, z)
    return ledger
