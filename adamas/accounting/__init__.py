"""What a run may release, has released, and has reserved: see `adamas.accounting.spending`."""

from adamas.accounting.spending import Plan, Spending

__all__ = ["Plan", "Spending"]
