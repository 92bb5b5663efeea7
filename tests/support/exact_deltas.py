"""Compute exact deltas of Gaussian releases with mpmath. The fixture `digits` sets their precision."""

import mpmath
import pytest


@pytest.fixture
def digits():
    """Makes mpmath compute with 60 digits."""
    with mpmath.workdps(60):
        yield


def gaussian_delta(epsilon, z):
    """Returns the delta of one release without sampling: Balle and Wang (2018), theorem 8."""
    z, epsilon = mpmath.mpf(z), mpmath.mpf(epsilon)
    return mpmath.ncdf(1 / (2 * z) - epsilon * z) - mpmath.exp(epsilon) * mpmath.ncdf(
        -1 / (2 * z) - epsilon * z
    )


def sampled_delta(epsilon, z, rate, *, more):
    """Returns the delta of one sampled release at any epsilon, for one record less or one `more`."""
    epsilon, z, q = mpmath.mpf(epsilon), mpmath.mpf(z), mpmath.mpf(rate)
    if not more:  # P is the mixture, Q its first part
        if mpmath.exp(epsilon) <= 1 - q:
            return 1 - mpmath.exp(epsilon)
        return q * gaussian_delta(mpmath.log(1 + mpmath.expm1(epsilon) / q), z)
    # By symmetry, H_e(P, Q) = 1 - exp(e) + exp(e) H_-e(Q, P).
    return 1 - mpmath.exp(epsilon) + mpmath.exp(epsilon) * sampled_delta(-epsilon, z, rate, more=False)


def twice_sampled_delta(epsilon, z, rate, *, more):
    """Returns the delta of two sampled releases: that of one, integrated over the loss of the other."""
    z, q = mpmath.mpf(z), mpmath.mpf(rate)

    def density(x, center):
        return mpmath.npdf(x, center, z)

    def integrand(x):
        mixed = (1 - q) * density(x, 0) + q * density(x, 1)
        upper, lower = (density(x, 0), mixed) if more else (mixed, density(x, 0))
        return upper * sampled_delta(epsilon - mpmath.log(upper / lower), z, rate, more=more)

    ends = [-12 * z, -6 * z, -3 * z, 0, 0.5, 1, 1 + 3 * z, 1 + 6 * z, 1 + 12 * z, 1 + 20 * z]
    # The integrand has a kink where the loss of the other release reaches the end of its range.
    kink = (-1 if more else 1) * epsilon - mpmath.log(1 - q)
    if mpmath.exp(kink) > 1 - q:
        ends.append(z**2 * mpmath.log(1 + mpmath.expm1(kink) / q) + mpmath.mpf(0.5))
    return mpmath.quad(integrand, sorted(ends))
