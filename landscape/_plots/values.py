"""What plots share: the values of a plane, without what is not finite."""

from typing import Any

import numpy as np
import xarray as xr


def check_plane(surface: xr.Dataset, variable: str) -> xr.DataArray:
    """The variable over `(alpha, beta)`.

    Raises:
        ValueError: If there is none.
    """
    if variable not in surface or set(surface[variable].dims) != {"alpha", "beta"}:
        known = [str(n) for n, v in surface.data_vars.items() if set(v.dims) == {"alpha", "beta"}]
        got = ", ".join(known) or "none"
        raise ValueError(f"`surface`: expected {variable!r} over alpha and beta, got {got}")
    return surface[variable].transpose("alpha", "beta")


def finite(values: xr.DataArray) -> Any:
    """A masked array of the finite values."""
    return np.ma.masked_invalid(values.values.astype(float))
