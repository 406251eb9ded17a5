"""Paired comparisons over seeds: what the paper's tables report, and intervals."""

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
    "cohen_d": "mean difference over its standard deviation",
    "low": "lower end of the bootstrap interval of the difference",
    "high": "upper end of the bootstrap interval of the difference",
    "n_pairs": "pairs of runs that did not diverge",
}


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
        the number of tests that could be made), `cohen_d` (of the differences), `low`, `high` and
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
    names = [name for name in _NAMES if name != "p_bonferroni"]
    result = statistics.assign_coords(statistic=names).to_dataset("statistic")

    # Cells without a test take no part in the correction.
    tests = int(result["p"].notnull().sum())
    result["p_bonferroni"] = (result["p"] * tests).clip(max=1.0)

    for name, text in _NAMES.items():
        result[name].attrs = {"long_name": text}
    attrs = provenance(
        "lab.results.statistics.paired", level=level, resamples=resamples, tests=tests
    )
    return result[list(_NAMES)].assign_attrs(attrs)


def _compare_pairs(
    plain: np.ndarray, asymmetric: np.ndarray, *, level: float, resamples: int, seed: int
) -> np.ndarray:
    """Return the statistics in the order of `_NAMES`, without `p_bonferroni`."""
    is_whole_pair = ~(np.isnan(plain) | np.isnan(asymmetric))
    plain, asymmetric = plain[is_whole_pair], asymmetric[is_whole_pair]
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
