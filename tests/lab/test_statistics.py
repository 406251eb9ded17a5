import numpy as np
import pytest
import xarray as xr
from scipy.special import stdtr

from lab.results.statistics import holm, paired


def make(values):
    seeds = np.arange(42, 42 + np.shape(values)[-1])
    dims = ("cell", "seed")[-np.ndim(values) :]
    return xr.DataArray(np.asarray(values, float), dims=dims, coords={"seed": seeds})


def test_against_the_textbook():
    rng = np.random.default_rng(0)
    a, b = rng.normal(36, 1, (3, 10)), rng.normal(38, 1.5, (3, 10))
    found = paired(make(a), make(b))
    difference = b - a
    mean, std = difference.mean(1), np.sqrt(((difference.T - difference.mean(1)) ** 2).sum(0) / 9)
    t = mean / (std / np.sqrt(10))
    p = 2 * stdtr(9, -np.abs(t))  # Student's distribution, both tails
    np.testing.assert_allclose(found["change"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["t"], t, rtol=1e-10)
    np.testing.assert_allclose(found["p"], p, rtol=1e-8)
    np.testing.assert_allclose(found["p_bonferroni"], np.minimum(3 * p, 1), rtol=1e-8)
    np.testing.assert_allclose(found["cohen_d"], mean / std, rtol=1e-10)
    np.testing.assert_allclose(found["std_plain"], a.std(1, ddof=1), rtol=1e-12)


def test_holm_rejects_what_the_procedure_rejects():
    """The procedure itself, step by step, at many levels."""
    rng = np.random.default_rng(3)
    p = np.append(rng.uniform(0, 0.2, 6), np.nan)
    corrected = holm(p)
    assert np.isnan(corrected[-1])

    for level in np.linspace(0.005, 0.995, 100):
        rejected = set()
        for n_left, index in zip(range(6, 0, -1), np.argsort(p[:6]), strict=True):
            if p[index] > level / n_left:
                break
            rejected.add(int(index))
        assert {index for index in range(6) if corrected[index] <= level} == rejected


def test_published_seeds_give_the_published_summary():
    """Table 26 lists CoAtNet's five seeds: S2 with one branch, S3 with a hundred."""
    s2 = [75.63, 75.34, 75.94, 75.18, 74.21]
    s3 = [77.41, 77.32, 76.95, 76.74, 76.96]
    found = paired(make(s2), make(s3))
    assert abs(found["mean_asymmetric"].item() - 77.08) < 0.005
    assert abs(found["std_asymmetric"].item() - 0.27) < 0.015  # printed as 0.26 and as 0.27
    assert found["p"].item() < 0.01


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    plain = make(np.zeros((300, 30)))
    found = paired(plain, make(rng.normal(1.0, 1.0, (300, 30))), resamples=400)
    covered = ((found["low"] <= 1.0) & (found["high"] >= 1.0)).mean().item()
    assert 0.88 < covered < 0.98


def test_diverged_pairs_are_left_out():
    a, b = make([1.0, 2.0, np.nan, 4.0]), make([2.0, 4.0, 9.0, np.nan])
    found = paired(a, b)
    assert found["n_pairs"].item() == 2
    assert found["change"].item() == 1.5


@pytest.mark.parametrize(("a", "b"), [([1.0], [2.0]), ([1.0, 2.0], [2.0, 3.0]), ([np.nan], [1.0])])
def test_what_cannot_be_tested_is_undefined(a, b):
    found = paired(make(a), make(b))
    assert np.isnan(found["p"])
    assert np.isnan(found["cohen_d"])
    assert found.attrs["tests"] == 0


def test_other_seeds_are_refused():
    with pytest.raises(ValueError, match="cannot align"):
        paired(make([1.0, 2.0]), make([1.0, 2.0]).assign_coords(seed=[1, 2]))
