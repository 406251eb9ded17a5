"""Paired comparisons over seeds: what the paper's tables report, and intervals."""

from collections.abc import Sequence

import numpy as np
import scipy.stats
import xarray as xr

from resonance_toolkit import provenance

_NAMES = {
    "mean_plain": "mean, plain",
    "std_plain": "standard deviation, plain",
    "mean_asymmetric": "mean, asymmetric",
    "std_asymmetric": "standard deviation, asymmetric",
    "change": "mean difference, asymmetric - plain",
    "t": "t statistic of the paired two-tailed test",
    "p": "p value of the paired two-tailed t test",
    "p_bonferroni": "p value times the number of tests",
    "p_holm": "p value by Holm's step-down procedure",
    "cohen_d": "mean difference over its standard deviation",
    "low": "lower end of the bootstrap interval of the difference",
    "high": "upper end of the bootstrap interval of the difference",
    "n_pairs": "pairs of runs that did not diverge",
}

_CORRECTED = ("p_bonferroni", "p_holm")


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean over seeds and the ends of its t interval, NaN for fewer than two values.

    Examples:
        >>> mean, low, high = mean_interval([1.0, 2.0, 3.0])
        >>> round(mean, 2), round(low, 2), round(high, 2)
        (2.0, -0.48, 4.48)
    """
    n = len(values)
    mean = float(np.mean(values)) if n else float("nan")
    if n < 2:
        return mean, float("nan"), float("nan")

    # Student's quantile: the deviation comes from the same few seeds.
    quantile = scipy.stats.t.ppf((1 + level) / 2, n - 1)
    half_width = float(quantile * np.std(values, ddof=1) / np.sqrt(n))
    return mean, mean - half_width, mean + half_width


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p values for their number by Holm's step-down procedure; NaNs take no part.

    The smallest is multiplied by the number of tests, the next by one less, and so on; none may
    become smaller than the one before it, nor larger than 1.

    Examples:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    corrected = np.full(p.shape, np.nan)
    is_test = np.isfinite(p)
    tests = p[is_test]

    order = np.argsort(tests)
    factors = np.arange(len(tests), 0, -1)
    stepped = np.minimum(np.maximum.accumulate(tests[order] * factors), 1.0)

    restored = np.empty_like(stepped)
    restored[order] = stepped
    corrected[is_test] = restored
    return corrected


def describe_test(statistics: xr.Dataset) -> str:
    """Write the test of one cell: its p value with both corrections, and the effect size.

    Args:
        statistics: One cell of what `paired` gives.
    """
    if not np.isfinite(float(statistics["p"])):
        return ""

    p, holm_p, bonferroni_p, effect = (
        float(statistics[name]) for name in ("p", "p_holm", "p_bonferroni", "cohen_d")
    )
    corrected = f"Holm {holm_p:.2g}, Bonferroni {bonferroni_p:.2g}"
    return f"p = {p:.2g} ({corrected}), d = {effect:.2g}"


def paired(
    plain: xr.DataArray,
    asymmetric: xr.DataArray,
    *,
    dim: str = "seed",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> xr.Dataset:
    """Compare two treatments that share their seeds.

    Pairs with a NaN are left out. With fewer than two pairs, or differences that are all alike,
    the test and its effect size are NaN.

    Args:
        plain, asymmetric: The same quantity of both, with `dim` and any further dimensions.
        dim: What the pairs are made along.
        level: Of the interval: of the mean difference, by resampling pairs (percentiles).
        resamples: How often.
        seed: Decides the resampling.

    Returns:
        Dataset with means, standard deviations (n - 1), `change`, `t`, `p`, `p_bonferroni` (times
        the number of tests that could be made), `p_holm` (the same guarantee, never larger),
        `cohen_d` (of the differences), `low`, `high` and
        `n_pairs`, over the further dimensions.
    """
    plain, asymmetric = xr.align(plain, asymmetric, join="exact")
    statistics = xr.apply_ufunc(
        _compare_pairs,
        plain,
        asymmetric,
        input_core_dims=[[dim], [dim]],
        output_core_dims=[["statistic"]],
        vectorize=True,
        kwargs={"level": level, "resamples": resamples, "seed": seed},
    )
    names = [name for name in _NAMES if name not in _CORRECTED]
    result = statistics.assign_coords(statistic=names).to_dataset("statistic")

    # Cells without a test take no part in the correction.
    tests = int(result["p"].notnull().sum())
    result["p_bonferroni"] = (result["p"] * tests).clip(max=1.0)
    result["p_holm"] = result["p"].copy(data=holm(result["p"].values))

    for name, text in _NAMES.items():
        result[name].attrs = {"long_name": text}
    attrs = provenance(
        "lab.results.statistics.paired", level=level, resamples=resamples, tests=tests
    )
    return result[list(_NAMES)].assign_attrs(attrs)


def _compare_pairs(
    plain: np.ndarray, asymmetric: np.ndarray, *, level: float, resamples: int, seed: int
) -> np.ndarray:
    """Return the statistics in the order of `_NAMES`, without the corrected p values."""
    is_whole_pair = ~(np.isnan(plain) | np.isnan(asymmetric))
    plain = plain[is_whole_pair]
    asymmetric = asymmetric[is_whole_pair]
    difference = asymmetric - plain
    n_pairs = len(difference)

    mean = float(difference.mean()) if n_pairs else float("nan")
    low = high = mean
    t = p = cohen_d = float("nan")

    # Differences that are equal but for rounding have no deviation to compare the mean with.
    if n_pairs > 1 and np.ptp(difference) > 1e-12 * max(np.abs(difference).max(), 1e-300):
        t, p = scipy.stats.ttest_rel(asymmetric, plain)
        cohen_d = mean / difference.std(ddof=1)
        bootstrap = scipy.stats.bootstrap(
            (difference,),
            np.mean,
            confidence_level=level,
            n_resamples=resamples,
            method="percentile",
            rng=np.random.default_rng(seed),
        )
        low, high = bootstrap.confidence_interval

    numbers = [*_mean_and_std(plain), *_mean_and_std(asymmetric)]
    numbers += [mean, t, p, cohen_d, low, high, n_pairs]
    return np.array(numbers, dtype=float)


def _mean_and_std(values: np.ndarray) -> tuple[float, float]:
    mean = values.mean() if len(values) else float("nan")
    std = values.std(ddof=1) if len(values) > 1 else float("nan")
    return mean, std
