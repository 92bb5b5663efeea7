"""Histograms count every coordinate."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from adamas import rules
from adamas.diagnostics import histogram, histograms
from tests.support.diagnosed_runs import GRADIENTS, VARIANCES, feed


def test_histograms_count_every_coordinate():
    p = nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))
    rule = rules.AdamBC([p], floor=0.5)
    feed(rule, GRADIENTS, VARIANCES)
    seen = histograms(rule, bins=4)
    moments = rule.moments(p)
    corrected = (moments.v_hat - 3.0).numpy().ravel()
    assert seen["v_corrected"]["not_positive"] == (corrected <= 0).sum() > 0
    for name, values in {
        "m_hat": moments.m_hat.abs(),
        "v_hat": moments.v_hat,
        "v_corrected": torch.tensor(corrected[corrected > 0]),
        "update_uncorrected": (moments.m_hat / moments.v_hat.sqrt()).abs(),
        "update": (moments.m_hat / moments.denominator).abs(),
    }.items():
        one = seen[name]
        edges = [one["edge"] + one["width"] * k for k in range(len(one["counts"]) + 1)]
        expected, _ = np.histogram(np.log10(values.numpy().ravel()), bins=edges)
        assert one["counts"] == expected.tolist(), name
        assert sum(one["counts"]) + one["below"] + one["not_positive"] == 20
    assert seen["noise_variance"] == pytest.approx(3.0)
    assert seen["floor"] == 0.5
    json.dumps(seen, allow_nan=False)


def test_values_far_below_the_rest_are_counted_without_bins():
    values = np.concatenate([np.full(10_000, 2.0), [1e-30, 0.0, -3.0, math.inf]])
    seen = histogram([values], bins=10)
    assert seen["counts"] == [10_000]
    assert (seen["below"], seen["not_positive"], seen["not_finite"]) == (1, 2, 1)
    assert 10 ** seen["edge"] <= 2.0 < 10 ** (seen["edge"] + seen["width"])
    assert len(histogram([np.array([1e-200, 1.0])], bins=10)["counts"]) <= 151
    assert histogram([], bins=10)["counts"] == []
    with pytest.raises(ValueError, match="bins"):
        histograms(rules.SGD([nn.Parameter(torch.zeros(1))]), bins=0)
