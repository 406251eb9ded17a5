"""P-values and bounds behind thresholds, by closed forms, other libraries and simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from probes._exit_analysis.bounds import mean_p_value, rate_bound, risk_p_value


def test_p_values_against_closed_forms_and_simulation():
    assert risk_p_value(np.zeros(30), 0.1, binary=True) == pytest.approx(0.9**30)
    two = math.fsum(math.comb(30, k) * 0.2**k * 0.8 ** (30 - k) for k in range(3))
    assert risk_p_value(np.repeat([1.0, 0.0], [2, 28]), 0.2, binary=True) == pytest.approx(two)
    assert risk_p_value(np.zeros(30), 0.1, binary=False) == pytest.approx(0.9**30)
    half = np.full(30, 0.05)  # Kullback-Leibler divergence of 0.05 from 0.1
    exponent = 0.05 * math.log(0.5) + 0.95 * math.log(0.95 / 0.9)
    assert risk_p_value(half, 0.1, binary=False) == pytest.approx(math.exp(-30 * exponent))
    assert risk_p_value(np.ones(3), 0.5, binary=True) == 1
    # At the limit itself, a p-value is below delta at most a share delta of the time.
    rng = np.random.default_rng(0)
    drawn = [risk_p_value(rng.beta(1, 9, 60), 0.1, binary=False) for _ in range(2000)]
    assert np.mean(np.array(drawn) <= 0.1) <= 0.1
    normal = [mean_p_value(rng.normal(0.1, 1, 8), 0.1) for _ in range(4000)]
    assert np.mean(np.array(normal) <= 0.1) == pytest.approx(0.1, abs=0.015)


def test_p_values_of_means_are_those_of_a_t_test():
    values = np.random.default_rng(1).normal(0, 1, 5)  # few: n and n - 1 differ
    for limit in (-0.5, 0.2, 1.0):
        expected = scipy.stats.ttest_1samp(values, limit, alternative="less").pvalue
        assert mean_p_value(values, limit) == pytest.approx(expected, rel=1e-12)
    assert mean_p_value(values[:1], 10.0) == 1  # one sample has no spread
    assert mean_p_value(np.zeros(3), 0.1) == 0
    assert mean_p_value(np.zeros(3), 0.0) == 1


def test_rate_bounds_by_their_formulas():
    assert rate_bound(np.ones(50), 0.1) == pytest.approx(math.sqrt(math.log(20) / 100))
    several = math.sqrt(math.pi / 100) + math.sqrt(math.log(10) / 100)
    assert rate_bound(np.full(50, 4), 0.1) == pytest.approx(several)
    mixed = np.repeat([4, 1], 25)  # 2.5 tokens a sample in the mean, two ratios
    assert rate_bound(mixed, 0.1) == pytest.approx(2 * several * 4 / 2.5)
