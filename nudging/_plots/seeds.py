"""Repetitions in a picture: a mean over the seeds that have a value."""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray


def with_seed_axis(values: xr.DataArray) -> xr.DataArray:
    """Add an axis of one seed where there is none."""
    return values if "seed" in values.dims else values.expand_dims("seed")


def mean_over_seeds(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Average what is finite along an axis; NaN where nothing is."""
    is_finite = np.isfinite(values)
    count = is_finite.sum(axis)
    total = np.where(is_finite, values, 0).sum(axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
