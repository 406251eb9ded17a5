"""Recorded updates as a Dataset, with the cosines that follow from inner products and norms."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import xarray as xr

from gradients._rows import Array, RecordedUpdate, stack_micro_squares

_BY_LAYER = ("step", "layer")
_BY_PAIR = ("step", "layer", "objective", "other_objective")


class HasLayers(Protocol):
    """A recorder, or what is left of one in a file."""

    @property
    def layers(self) -> list[str]: ...
    @property
    def sizes(self) -> list[int] | None: ...


def make_dataset(
    updates: Sequence[RecordedUpdate],
    recorder: HasLayers,
    objectives: Sequence[str],
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """Label what was recorded, and add the cosines.

    Args:
        updates: One entry of `step` each.
        recorder: Knows the layers, and how many parameters each has.
        objectives: Names of the losses. One or two make variables of their own; more make
            dimensions.
        attributes: Of the result.
    """
    # The shapes are given, since there may be no update yet.
    n_losses = len(objectives)
    by_pair = (len(updates), len(recorder.layers), n_losses, n_losses)
    dot = np.array([update.dot for update in updates]).reshape(by_pair)
    norm = np.sqrt(np.array([update.square for update in updates]).reshape(by_pair))
    loss = np.array([update.loss for update in updates]).reshape(len(updates), n_losses)

    make_variables = _variables_of_two if n_losses <= 2 else _variables_of_many
    variables = make_variables(dot, norm, loss)

    steps = np.array([update.step for update in updates], dtype=np.int64)
    coords: dict[str, Any] = {
        "step": ("step", steps, {"long_name": "optimizer updates before"}),
        "layer": layer_coordinate(recorder.layers),
    }

    # Activations have no sizes, and no gradient of the whole either.
    if recorder.sizes is not None:
        sizes = np.asarray(recorder.sizes, dtype=np.int64)
        coords["n_parameters"] = ("layer", sizes, {"long_name": "parameters in the layer"})

        gradient_norm = np.array([update.gradient_norm for update in updates], dtype=float)
        variables["gradient_norm"] = _variable("step", gradient_norm, "norm of the whole gradient")

    micro_square = stack_micro_squares(updates)
    if micro_square is not None:
        variables |= _variables_of_noise(updates, micro_square)

    if n_losses > 2 or micro_square is not None:
        names = np.array(objectives, dtype=str)
        coords["objective"] = _variable("objective", names, "loss term")
    if n_losses > 2:
        coords["other_objective"] = _variable("other_objective", names, "other loss term")

    attributes = {**attributes, "objectives": ", ".join(objectives)}
    return with_cosines(xr.Dataset(variables, coords, attributes))


def step_scalars(trace: xr.Dataset) -> dict[str, float]:
    """Give the numbers of a record's only step, without those by layer: what one logs.

    With more than two losses a number of one objective is named `loss/main`, one of a pair
    `cosine_total/main/auxiliary 1`, each pair once.
    """
    row = trace.isel(step=0)
    scalars: dict[str, float] = {"step": int(row["step"])}

    for name, variable in row.data_vars.items():
        match variable.dims:
            case ():
                scalars[str(name)] = float(variable)
            case ("objective",):
                for objective in row["objective"].values:
                    scalars[f"{name}/{objective}"] = float(variable.sel(objective=objective))
            case ("objective", "other_objective"):
                for first, second in combinations(row["objective"].values, 2):
                    pair = variable.sel(objective=first, other_objective=second)
                    scalars[f"{name}/{first}/{second}"] = float(pair)
    return scalars


def layer_coordinate(names: Sequence[str], long_name: str = "layer") -> xr.Variable:
    """Label the dimension `layer`, in numpy's own strings as in every package."""
    return xr.Variable("layer", np.array(names, dtype=str), {"long_name": long_name})


def with_cosines(trace: xr.Dataset) -> xr.Dataset:
    """Add the cosines that inner products and norms give, by layer and over all layers.

    A cosine is NaN where the losses share no parameter or a gradient is zero.
    """
    if "dot" in trace:
        dot = trace["dot"]
        square = trace["norm_main"] ** 2
        other_square = trace["norm_aux"] ** 2
    elif "inner_product" in trace:
        dot = trace["inner_product"]
        square = trace["norm"] ** 2
        swapped = square.rename(objective="other_objective", other_objective="objective")
        other_square = swapped.transpose(*square.dims)
    else:
        return trace

    # Over all layers: inner products and squared norms add up, cosines do not.
    cosine = _cosine(dot, square, other_square)
    totals = [part.sum("layer", skipna=True, min_count=1) for part in (dot, square, other_square)]
    conflicts = (cosine < 0).where(cosine.notnull()).mean("layer")

    return trace.assign(
        cosine=cosine.assign_attrs(long_name="cosine of the gradients"),
        cosine_total=_cosine(*totals).assign_attrs(long_name="cosine over all shared parameters"),
        conflict_share=conflicts.assign_attrs(long_name="share of layers whose gradients conflict"),
    )


def _cosine(dot: xr.DataArray, square: xr.DataArray, other_square: xr.DataArray) -> xr.DataArray:
    # Rounding can leave 1 + 2e-16; a zero gradient has no direction.
    lengths: xr.DataArray = square**0.5 * other_square**0.5
    return (dot / lengths.where(lengths > 0)).clip(-1, 1)


def _variables_of_two(dot: Array, norm: Array, loss: Array) -> dict[str, Any]:
    # The last column is the auxiliary loss, or the main one if it is alone.
    variables = {
        "norm_main": _variable(_BY_LAYER, norm[..., 0, -1], "norm of the main gradient"),
        "loss_main": _variable("step", loss[:, 0], "main loss"),
    }
    if loss.shape[1] == 1:
        return variables

    return variables | {
        "norm_aux": _variable(_BY_LAYER, norm[..., 1, 0], "norm of the auxiliary gradient"),
        "dot": _variable(_BY_LAYER, dot[..., 0, 1], "inner product of the gradients"),
        "loss_aux": _variable("step", loss[:, 1], "auxiliary loss"),
    }


def _variables_of_many(dot: Array, norm: Array, loss: Array) -> dict[str, Any]:
    norm_text = "gradient norm of the objective where the other reaches too"
    return {
        "inner_product": _variable(_BY_PAIR, dot, "inner product of the gradients"),
        "norm": _variable(_BY_PAIR, norm, norm_text),
        "loss": _variable(("step", "objective"), loss, "loss"),
    }


def _variables_of_noise(
    updates: Sequence[RecordedUpdate], micro_square: Array
) -> dict[str, xr.Variable]:
    square = np.array([np.diagonal(update.square, axis1=1, axis2=2) for update in updates])
    n_micro_batches = np.array([update.n_micro_batches for update in updates], dtype=np.int64)

    dims = ("step", "layer", "objective")
    micro_text = "mean squared gradient norm of the micro-batches"
    return {
        "squared_norm": _variable(dims, square, "squared gradient norm of the update"),
        "micro_batch_squared_norm": _variable(dims, micro_square, micro_text),
        "n_micro_batches": _variable("step", n_micro_batches, "micro-batches of the update"),
    }


def _variable(dims: str | tuple[str, ...], values: Any, long_name: str) -> xr.Variable:
    return xr.Variable(dims, values, {"long_name": long_name})
