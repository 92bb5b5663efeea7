"""Events of dp_accounting: the Gaussian mechanism, with and without sampling."""

import dp_accounting
import pytest

every_accountant = pytest.mark.parametrize("accountant", ["pld", "rdp"])


def gaussian(z=5.0):
    """Makes the event of a Gaussian release with noise multiplier z."""
    return dp_accounting.GaussianDpEvent(z)


def sampled(z=5.0, rate=0.1):
    """Makes the event of a Gaussian release on a Poisson sample."""
    return dp_accounting.PoissonSampledDpEvent(rate, gaussian(z))
