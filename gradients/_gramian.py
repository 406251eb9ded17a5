"""The inner products of a trace, as one symmetric matrix for each step, or step and layer."""

import numpy as np
import xarray as xr

from gradients._checks import default_names
from gradients._rows import Array


def gramians_of(
    trace: xr.Dataset, *, by_layer: bool
) -> tuple[Array, xr.DataArray, tuple[str, ...]]:
    """Give Gramians `(..., objective, other)`, an array of their other dimensions, and names.

    An inner product is 0 where two losses share no parameter. A Gramian is NaN where one has no
    gradient at all.

    Raises:
        ValueError: If the trace holds no inner products.
    """
    if "layer" not in trace.dims:
        raise ValueError(f"`trace`: expected a dimension `layer`, got {dict(trace.sizes)}")

    if "dot" in trace:
        parts = [trace["norm_main"] ** 2, trace["dot"], trace["dot"], trace["norm_aux"] ** 2]
        objectives = _names_of_two(trace)
    elif "inner_product" in trace:
        objectives = tuple(str(name) for name in trace["objective"].values)
        matrix = trace["inner_product"]
        parts = [
            matrix.isel(objective=i, other_objective=j, drop=True)
            for i in range(len(objectives))
            for j in range(len(objectives))
        ]
    else:
        raise ValueError(
            "`trace`: expected the inner products of two losses or more, got "
            f"{', '.join(map(str, trace.data_vars)) or 'no variable'}"
        )

    if not by_layer:
        parts = [part.sum("layer", skipna=True, min_count=1) for part in parts]
    n_losses = len(objectives)
    gramians = np.stack([part.values for part in parts], axis=-1)
    gramians = gramians.reshape(*parts[0].shape, n_losses, n_losses).astype(float)

    # Losses without a parameter in common are at right angles; without a gradient, at none.
    squares = np.diagonal(gramians, axis1=-2, axis2=-1)
    is_defined = np.isfinite(squares).all(-1)[..., None, None]
    gramians = np.where(np.isnan(gramians), 0.0, gramians)
    gramians = np.where(is_defined, gramians, np.nan)
    return gramians, parts[0], objectives


def _names_of_two(trace: xr.Dataset) -> tuple[str, ...]:
    names = str(trace.attrs.get("objectives", "")).split(", ")
    return (names[0], names[1]) if len(names) == 2 else default_names(2)
