"""Fixtures that several tests of the accounting use."""

from tests.support.keys_of_noise import keys, ledger

__all__ = ["keys", "ledger"]
