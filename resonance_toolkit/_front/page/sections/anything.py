"""A result by itself: of any verb, or one that a user joined."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.numbers import Number
from resonance_toolkit._front.page.sections.part import Findings

_MOST_NUMBERS = 60


def describe(result: xr.Dataset) -> Findings:
    """List what a result holds: scalars as they are, of the rest the mean and the range."""
    numbers = []
    for name, variable in result.data_vars.items():
        values: Any = np.asarray(variable.values)
        if values.dtype.kind not in "fiub":
            continue

        label = str(variable.attrs.get("long_name", name))
        units = str(variable.attrs.get("units", ""))
        finite = values[np.isfinite(values)].astype(float)
        if not finite.size:
            numbers.append(Number(label, math.nan, f"no value is defined ({name})"))
        elif values.size == 1:
            numbers.append(Number(label, float(finite[0]), str(name), units=units))
        else:
            dims = " \u00d7 ".join(f"{dim} {size}" for dim, size in variable.sizes.items())
            reference = f"{name}, mean over {dims}; the range beside it"
            low = float(finite.min())
            high = float(finite.max())
            numbers.append(Number(label, float(finite.mean()), reference, low, high, units))

    # A plane of several repetitions would need one picture for each.
    is_plane = {"alpha", "beta"} <= set(result.dims) and "loss" in result

    return Findings(
        numbers=numbers[:_MOST_NUMBERS],
        results=[result],
        surface=result if is_plane and result["loss"].ndim == 2 else None,
    )
