"""Intervals of a mean over few repetitions, each measured on the same few samples."""

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95

# Beyond this, "more seeds" is no advice.
_MOST_SEEDS = 1000


@dataclass(frozen=True, eq=False)
class Difference:
    """Of a measure, branches minus plain, after the last update.

    Attributes:
        by_seed: One for each seed.
        mean: Over seeds.
        half_seeds: Half the 95 % interval that seeds alone would give; NaN for one seed.
        half_samples: The same of groups of held-out samples; NaN for one group.
    """

    by_seed: NDArray[np.float64]
    mean: float
    half_seeds: float
    half_samples: float

    @property
    def low(self) -> float:
        """The lower end of the interval, for other seeds and other held-out samples."""
        return self.mean - math.hypot(self.half_seeds, self.half_samples)

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + math.hypot(self.half_seeds, self.half_samples)


def difference_of(response: xr.Dataset, name: str) -> Difference:
    """Compare the arms of an experiment, paired by seed.

    All seeds are measured on the same held-out samples, so seeds that agree with each other may be
    wrong together about other samples. The interval therefore adds, in quadrature, what varies
    between seeds and what varies between groups of held-out samples, each by Student's t.

    Args:
        response: With `loss`, `accuracy (arm, seed, step)`, `group_loss`, `group_accuracy (arm,
            seed, group)` and `group_samples (group)`.
        name: `"loss"` or `"accuracy"`.
    """
    last = response[name].isel(step=-1)
    by_seed = (last.sel(arm="branches") - last.sel(arm="plain")).values
    mean, low, high = t_interval(by_seed)

    groups = response[f"group_{name}"]
    by_group = (groups.sel(arm="branches") - groups.sel(arm="plain")).mean("seed").values
    half_samples = _half_of_groups(by_group, response["group_samples"].values)
    return Difference(by_seed, mean, (high - low) / 2, half_samples)


def t_interval(values: ArrayLike) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t, of independent values.

    Returns:
        Mean, lower and upper end. NaN ends for one value; all NaN if a value is not finite.

    Examples:
        >>> [round(number, 3) for number in t_interval([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt(3)
        [2.0, -0.484, 4.484]
    """
    array = np.asarray(values, dtype=float)
    if not array.size or not np.isfinite(array).all():
        return math.nan, math.nan, math.nan

    mean = float(array.mean())
    if array.size < 2:
        return mean, math.nan, math.nan
    half = _quantile(array.size) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return mean, mean - half, mean + half


def seeds_to_decide(difference: Difference) -> int | None:
    """How many seeds of this mean and spread would have an interval without 0.

    Returns:
        None if more than a thousand, if the held-out samples alone leave it open, or if there is
        nothing to go by.

    Examples:
        >>> by_seed = np.array([1.0, 2.0, 3.0])  # 2 exceeds t / sqrt(4) = 3.18 / 2, not 4.30 / 1.7
        >>> seeds_to_decide(Difference(by_seed, mean=2.0, half_seeds=2.48, half_samples=0.0))
        4
    """
    if len(difference.by_seed) < 2 or not np.isfinite(difference.by_seed).all():
        return None

    spread = float(difference.by_seed.std(ddof=1))
    for n_seeds in range(2, _MOST_SEEDS + 1):
        half_seeds = _quantile(n_seeds) * spread / math.sqrt(n_seeds)
        if math.hypot(half_seeds, difference.half_samples) < abs(difference.mean):
            return n_seeds
    return None


def _half_of_groups(values: NDArray[np.float64], n_samples: NDArray[np.float64]) -> float:
    """Half the interval of a mean over groups of samples, which may differ in size."""
    n_groups = len(values)
    if n_groups < 2 or not np.isfinite(values).all():
        return math.nan

    weights = n_samples / n_samples.sum()
    deviations = weights * (values - (weights * values).sum())
    variance = float((deviations**2).sum()) * n_groups / (n_groups - 1)
    return _quantile(n_groups) * math.sqrt(variance)


def _quantile(n_values: int) -> float:
    # Here, since most of scipy loads slowly.
    from scipy.special import stdtrit

    return float(stdtrit(n_values - 1, (1 + LEVEL) / 2))
