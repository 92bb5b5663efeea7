"""Audits a run: a lower bound on its epsilon from canaries, to compare with its claim."""

from adamas.audit.one_run import METHOD, Audit, audit, bound, least_false_rate, p_value, rates

__all__ = ["METHOD", "Audit", "audit", "bound", "least_false_rate", "p_value", "rates"]
