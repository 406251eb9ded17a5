"""Intervals of a mean over few repetitions."""

import math

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95

# Beyond this, "more seeds" is no advice.
_MOST_SEEDS = 1000


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


def seeds_to_decide(values: ArrayLike) -> int | None:
    """How many values of this mean and spread would have an interval without 0.

    Returns:
        None if more than a thousand, or if there is nothing to go by.

    Examples:
        >>> seeds_to_decide([1.0, 2.0, 3.0])  # 2 exceeds t / sqrt(4) = 3.18 / 2, but not 4.30 / 1.7
        4
    """
    array = np.asarray(values, dtype=float)
    if array.size < 2 or not np.isfinite(array).all():
        return None

    mean = abs(float(array.mean()))
    spread = float(array.std(ddof=1))
    if not mean:
        return None
    for n_seeds in range(2, _MOST_SEEDS + 1):
        if _quantile(n_seeds) * spread / math.sqrt(n_seeds) < mean:
            return n_seeds
    return None


def _quantile(n_values: int) -> float:
    # Here, since most of scipy loads slowly.
    from scipy.special import stdtrit

    return float(stdtrit(n_values - 1, (1 + LEVEL) / 2))
