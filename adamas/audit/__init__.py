"""Audits of a run: a lower bound on epsilon from canaries, to hold against the claim."""

from adamas.audit.one_run import METHOD, Audit, audit, bound, least_false_rate, p_value, rates

__all__ = ["METHOD", "Audit", "audit", "bound", "least_false_rate", "p_value", "rates"]
