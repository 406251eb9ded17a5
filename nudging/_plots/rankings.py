"""How several metrics rank rules, and which of them rank otherwise than the rest.

A table has the axes `(metric, rule, seed)`; NaN is a value that is missing.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nudging._plots.seeds import mean_over_seeds

Array: TypeAlias = NDArray[np.float64]


def find_disagreeing_metrics(table: Array) -> NDArray[np.bool_]:
    """Tell which metrics put a pair of rules in the other order than the mean ranks do."""
    orders = _order_pairs(table / largest_means(table))

    # How many rules a rule beats minus how many beat it is a rank, up to scale and shift.
    mean_rank = orders.sum(-1).mean(0)
    consensus = np.sign(np.round(mean_rank[:, None] - mean_rank[None], 9))
    disagrees: NDArray[np.bool_] = (orders * consensus < 0).any((1, 2))
    return disagrees


def largest_means(table: Array) -> Array:
    """Return each metric's mean of largest size, sign included, as `(metric, 1, 1)`."""
    means = mean_over_seeds(table, -1)
    largest = np.nanargmax(np.abs(means), 1)[:, None]
    return np.take_along_axis(means, largest, 1)[:, :, None]


def _order_pairs(table: Array) -> Array:
    """Return 1 where one rule is above another, -1 below, 0 for ties: `(metric, rule, rule)`."""
    means = mean_over_seeds(table, -1)
    difference = means[:, :, None] - means[:, None]

    # With seeds, a difference within two of its standard errors is a tie.
    tie = np.zeros_like(difference)
    if table.shape[-1] > 1:
        count = np.isfinite(table).sum(-1)
        degrees_of_freedom = np.where(count > 1, count - 1, np.nan)
        squared_deviations = np.nansum((table - means[:, :, None]) ** 2, -1)
        squared_error = squared_deviations / (degrees_of_freedom * count)
        tie = 2 * np.sqrt(squared_error[:, :, None] + squared_error[:, None])
    return np.where(np.abs(difference) > tie, np.sign(difference), 0.0)
