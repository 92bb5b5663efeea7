"""Optimizer diagnostics: what the last step did, read from the state of the rule.

A rule's state is made of releases, so all of this is post-processing and costs no privacy. The exception is
`RawMoments`, which sees gradients without noise.
"""

from adamas.diagnostics._numbers import QUANTILES
from adamas.diagnostics._parameters import Names
from adamas.diagnostics.distributions import histogram, histograms
from adamas.diagnostics.raw_moments import RawMoments
from adamas.diagnostics.step import diagnose, squared_weights

__all__ = ["QUANTILES", "Names", "RawMoments", "diagnose", "histogram", "histograms", "squared_weights"]
