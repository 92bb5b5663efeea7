"""Fixtures of several tests of the accounting."""

from tests.support.exact_deltas import digits
from tests.support.keys_of_noise import keys, ledger

__all__ = ["digits", "keys", "ledger"]
