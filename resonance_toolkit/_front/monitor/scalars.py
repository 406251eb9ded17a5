"""The numbers of a row that are logged: one for each layer, or for each pair of losses."""

import math
from itertools import product

import xarray as xr

# Of each part, what one watches while a model trains. The tree has the rest.
_LOGGED = {
    "gradients": (
        "cosine",
        "cosine_total",
        "conflict_share",
        "norm_main",
        "norm_aux",
        "loss_main",
        "loss_aux",
        "loss",
        "gradient_norm",
    ),
    "branches": ("loss", "accuracy", "weight"),
    "attention": ("normalised_entropy", "gini", "peak", "head_similarity"),
    "sharpness": ("critical_sharpness",),
}

# A mean over these says enough for a curve.
_AVERAGED = ("branch", "head")

# What the model itself owns is a layer without a name.
_ROOT = "model"


def to_scalars(part: str, row: xr.Dataset) -> dict[str, float]:
    """Name the numbers of a row, such as `gradients/cosine/blocks.2`, those that are finite."""
    scalars = {}
    for variable in _LOGGED[part]:
        if variable not in row:
            continue
        values = row[variable]
        values = values.mean([dim for dim in _AVERAGED if dim in values.dims])

        labels = [values[dim].values.tolist() for dim in values.dims]
        for place in product(*map(range, values.shape)):
            names = [str(axis[i]) or _ROOT for axis, i in zip(labels, place, strict=True)]
            if part == "gradients" and _is_known(values, place):
                continue
            number = float(values.values[place])
            if math.isfinite(number):
                scalars["/".join([part, variable, *names])] = number
    return scalars


def _is_known(values: xr.DataArray, place: tuple[int, ...]) -> bool:
    """Tell whether a cosine is that of a loss with itself, or is there as that of the pair."""
    if "other_objective" not in values.dims:
        return False
    index = dict(zip(values.dims, place, strict=True))
    return index["objective"] >= index["other_objective"]
