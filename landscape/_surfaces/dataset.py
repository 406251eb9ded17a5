"""Values at points as a labelled Dataset."""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

Array = NDArray[np.float64]

_AXES = {
    "alpha": "distance along the first direction",
    "beta": "distance along the second direction",
}
_NAMES = {
    "loss": "mean loss",
    "loss_se": "standard error of the mean loss over samples",
    "accuracy": "share of samples classified correctly",
}


def as_surface(
    values: dict[str, Array],
    coordinates: dict[str, Array],
    *,
    attrs: dict[str, str | int | float],
    evaluated: NDArray[np.bool_] | None = None,
) -> xr.Dataset:
    """Reshape a table of values over a plane (or line) to variables over its coordinates."""
    dims = tuple(coordinates)
    shape = tuple(len(c) for c in coordinates.values())
    variables: dict[str, tuple[Any, ...]] = {
        name: (dims, column.reshape(shape), {"long_name": _NAMES.get(name, name)})
        for name, column in values.items()
    }
    marked = np.ones(shape, bool) if evaluated is None else evaluated.reshape(shape)
    variables["evaluated"] = (dims, marked, {"long_name": "evaluated, not interpolated"})
    non_finite = int((~np.isfinite(values["loss"])).sum())
    return xr.Dataset(
        variables,
        coords={n: (n, c, {"long_name": _AXES[n]}) for n, c in coordinates.items()},
        attrs=attrs | {"n_evaluations": int(marked.sum()), "n_non_finite": non_finite},
    )
