"""What plots of planes share: the values to draw, without what is not finite."""

from typing import Any

import numpy as np
import xarray as xr


def check_plane(surface: xr.Dataset, variable: str) -> xr.DataArray:
    """The variable over `(alpha, beta)`.

    Raises:
        ValueError: If there is none.
    """
    if variable not in surface or set(surface[variable].dims) != {"alpha", "beta"}:
        planes = [str(n) for n, v in surface.data_vars.items() if set(v.dims) == {"alpha", "beta"}]
        raise ValueError(
            f"`surface`: expected {variable!r} over alpha and beta, got "
            f"{', '.join(planes) or 'none'}"
        )
    return surface[variable].transpose("alpha", "beta")


def finite_values(values: xr.DataArray) -> Any:
    """A masked array of the finite values."""
    return np.ma.masked_invalid(values.values.astype(float))


def value_limits(*masked_arrays: Any) -> tuple[float, float]:
    """Smallest and largest finite value; 0 and 1 if there is none."""
    arrays = [z for z in masked_arrays if z.count()]
    if not arrays:
        return 0.0, 1.0
    return float(min(z.min() for z in arrays)), float(max(z.max() for z in arrays))
