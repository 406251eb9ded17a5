from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from gradients._cosine import with_cosines
from gradients._rows import Array, Row


def make_dataset(
    rows: Sequence[Row],
    layers: Sequence[str],
    sizes: Sequence[int] | None,
    objectives: Sequence[str],
    attrs: Mapping[str, Any],
) -> xr.Dataset:
    """Label what was recorded; cosines are added."""
    count = len(objectives)
    empty = np.empty((0, len(layers), count, count))
    dot = np.array([row.dot for row in rows]) if rows else empty
    norm = np.sqrt(np.array([row.square for row in rows]) if rows else empty)
    loss = np.array([row.loss for row in rows]) if rows else np.empty((0, count))
    variables: dict[str, Any]
    if count <= 2:
        variables = _two(dot, norm, loss)
    else:
        pair = ("step", "layer", "objective", "other_objective")
        variables = {
            "inner_product": (pair, dot, {"long_name": "inner product of the gradients"}),
            "norm": (
                pair,
                norm,
                {"long_name": "gradient norm of the objective where the other reaches too"},
            ),
            "loss": (("step", "objective"), loss, {"long_name": "loss"}),
        }
    coords: dict[str, Any] = {
        "step": (
            "step",
            np.array([row.step for row in rows], dtype=np.int64),
            {"long_name": "optimizer updates before"},
        ),
        "layer": ("layer", np.array(layers, dtype=object), {"long_name": "layer"}),
    }
    if sizes is not None:
        counts = np.asarray(sizes, dtype=np.int64)
        coords["n_parameters"] = ("layer", counts, {"long_name": "parameters in the layer"})
        grad_norm = np.array([row.grad_norm for row in rows], dtype=float)
        variables["grad_norm"] = ("step", grad_norm, {"long_name": "norm of the whole gradient"})
    if count > 2:
        names = np.array(objectives, dtype=object)
        coords["objective"] = ("objective", names, {"long_name": "loss term"})
        coords["other_objective"] = ("other_objective", names, {"long_name": "other loss term"})
    named = {**attrs, "objectives": ", ".join(objectives)}
    return with_cosines(xr.Dataset(variables, coords, named))


def _two(dot: Array, norm: Array, loss: Array) -> dict[str, Any]:
    by_layer = ("step", "layer")
    found: dict[str, Any] = {
        "norm_main": (by_layer, norm[..., 0, -1], {"long_name": "norm of the main gradient"}),
        "loss_main": ("step", loss[:, 0], {"long_name": "main loss"}),
    }
    if loss.shape[1] == 2:
        found["norm_aux"] = (
            by_layer,
            norm[..., 1, 0],
            {"long_name": "norm of the auxiliary gradient"},
        )
        found["dot"] = (by_layer, dot[..., 0, 1], {"long_name": "inner product of the gradients"})
        found["loss_aux"] = ("step", loss[:, 1], {"long_name": "auxiliary loss"})
    return found
