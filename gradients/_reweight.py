from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from gradients._checks import check_recorded
from gradients._gramian import gramians_of
from gradients._rows import Array
from resonance_toolkit import check_choice, check_whole, preserving_rng, provenance, seed_generators

Weighting: TypeAlias = Callable[[Tensor], Tensor] | Literal["sum", "mean"]

# Of the trace: what the gradients are of. Its settings (every, level) are not the reweighting's.
_KEPT_ATTRIBUTES = ("model", "n_parameters", "objectives")

# Weightings of TorchJD that are given the matrix of gradients, but look at its height alone.
_LOOKING_AT_HEIGHT = ("SumWeighting", "MeanWeighting", "ConstantWeighting", "RandomWeighting")


def reweight(
    trace: xr.Dataset,
    weighting: Weighting,
    *,
    by: Literal["model", "layer"] = "model",
    seed: int = 0,
) -> xr.Dataset:
    """Compute what another weighting of the losses would have done with the recorded gradients.

    For each recorded step, the weights follow from the inner products of the gradients, and so do
    the norm of the combination `sum_i weight_i g_i` and its cosines. Nothing is trained again.

    With two losses, the gradients are those of the parameters that both losses reach. With more
    losses, each gradient is that of all parameters that its loss reaches, and zero elsewhere.

    Args:
        trace: Made by `Trace`, `compare`, `noise` or `regroup`, of two losses or more.
        weighting: Maps the Gramian, a `(k, k)` tensor of float64 on the CPU, to k weights: a
            function, or a Weighting from TorchJD that takes a Gramian, such as
            `torchjd.aggregation.UPGradWeighting()`. If it keeps a state, it is called on the steps
            in order. Or "sum" or "mean".
        by: One set of weights for the whole "model", or one for each "layer".
        seed: Determines random numbers of torch that the weighting draws, as PCGrad does.

    Returns:
        Dataset with `weight (step, objective)`; `combined_norm (step)`; `combined_cosine (step,
        objective)`, of the combination with each objective's gradient (if negative, the step would
        raise that objective); and for comparison `sum_norm` and `sum_cosine` of the plain sum. With
        `by="layer"`, all have the dimension `layer`, too. Values are NaN if an objective has no
        gradient or an infinite one; a cosine is NaN if the combination is zero.

    Raises:
        ValueError: If the trace has fewer than two losses or no `layer`, or the weighting
            does not return k finite numbers.
        TypeError: If the trace is not a Dataset, or the weighting does not take a Gramian.

    Examples:
        >>> trace = xr.Dataset(
        ...     {
        ...         "dot": (("step", "layer"), [[-4.0]]),
        ...         "norm_main": (("step", "layer"), [[2.0]]),
        ...         "norm_aux": (("step", "layer"), [[4.0]]),
        ...     },
        ...     {"step": [0], "layer": ["head"]},
        ... )
        >>> def equal_lengths(gramian):  # norms 2 and 4, at 120 degrees
        ...     return gramian.diagonal() ** -0.5
        >>> remedy = reweight(trace, equal_lengths)
        >>> remedy["weight"].values, remedy["combined_cosine"].values.round(3)
        (array([[0.5 , 0.25]]), array([[0.5, 0.5]]))
        >>> remedy["sum_cosine"].values.round(3)  # the sum is orthogonal to the main gradient
        array([[0.   , 0.866]])
    """
    check_recorded(trace)
    check_choice("by", by, ("model", "layer"))
    _check_weighting(weighting)
    seed = check_whole("seed", seed, at_least=0)

    gramians, template, objectives = gramians_of(trace, by_layer=by == "layer")
    n_losses = len(objectives)
    flat_gramians = gramians.reshape(-1, n_losses, n_losses)

    # Of what has no gradient, nothing is asked.
    is_defined = np.isfinite(flat_gramians).all((1, 2))
    flat_weights = np.full(flat_gramians.shape[:2], np.nan)
    with preserving_rng():
        seed_generators(seed)  # the Gramian is on the CPU
        for index in np.flatnonzero(is_defined):
            flat_weights[index] = _weights_of(weighting, flat_gramians[index])

    weights = flat_weights.reshape(gramians.shape[:-1])
    combined_norm, combined_cosine = _combine(weights, gramians)
    sum_norm, sum_cosine = _combine(np.ones_like(weights), gramians)

    dims = template.dims
    columns = {
        "weight": ((*dims, "objective"), weights, "weight of the objective's gradient"),
        "combined_norm": (dims, combined_norm, "norm of the weighted gradient"),
        "combined_cosine": (
            (*dims, "objective"),
            combined_cosine,
            "cosine of the weighted gradient with the objective's",
        ),
        "sum_norm": (dims, sum_norm, "norm of the plain sum"),
        "sum_cosine": (
            (*dims, "objective"),
            sum_cosine,
            "cosine of the plain sum with the objective's gradient",
        ),
    }
    variables = {
        name: xr.Variable(dimensions, values, {"long_name": text})
        for name, (dimensions, values, text) in columns.items()
    }

    label = xr.Variable("objective", np.array(objectives, dtype=str), {"long_name": "loss term"})
    attributes = {key: trace.attrs[key] for key in _KEPT_ATTRIBUTES if key in trace.attrs}
    attributes |= provenance("gradients.reweight", weighting=_name_of(weighting), by=by, seed=seed)
    return xr.Dataset(variables, {**template.coords, "objective": label}, attributes)


def _check_weighting(weighting: Any) -> None:
    if isinstance(weighting, str):
        check_choice("weighting", weighting, ("sum", "mean"))
        return
    if not callable(weighting) or isinstance(weighting, type):
        hint = "; make one of it: add ()" if isinstance(weighting, type) else ""
        raise TypeError(
            "`weighting`: expected a callable from a Gramian to weights, or 'sum' or 'mean', got "
            f"{weighting!r}{hint}"
        )

    # By name, since TorchJD need not be there: what takes the gradients themselves would take the
    # Gramian for them, and give numbers that mean nothing.
    name = type(weighting).__name__
    bases = {base.__name__ for base in type(weighting).__mro__}
    takes_gradients = "_MatrixWeighting" in bases and name not in _LOOKING_AT_HEIGHT
    if "Aggregator" in bases or takes_gradients:
        raise TypeError(
            "`weighting`: expected one that takes a Gramian, such as UPGradWeighting(), got "
            f"{name}, which takes the gradients themselves"
        )


def _weights_of(weighting: Weighting, gramian: Array) -> Array:
    n_losses = len(gramian)
    if isinstance(weighting, str):
        return np.full(n_losses, 1.0 if weighting == "sum" else 1 / n_losses)

    # A copy: what is handed out may be written to.
    answer = weighting(torch.from_numpy(gramian.copy()))
    if not isinstance(answer, Tensor):
        raise TypeError(
            f"`weighting`: expected {n_losses} finite weights, as a tensor, got {answer!r}"
        )
    weights: Array = answer.detach().double().cpu().numpy()
    if weights.shape != (n_losses,) or not np.isfinite(weights).all():
        raise ValueError(
            f"`weighting`: expected {n_losses} finite weights for the Gramian {gramian.tolist()}, "
            f"got {weights.tolist()}"
        )
    return weights


def _combine(weights: Array, gramians: Array) -> tuple[Array, Array]:
    """Norm of `sum_i w_i g_i`, and its cosine with each `g_j`, from `G_ij = g_i . g_j`."""
    inner_products = np.einsum("...i,...ij->...j", weights, gramians)
    square = np.einsum("...j,...j->...", inner_products, weights)
    lengths = np.sqrt(np.diagonal(gramians, axis1=-2, axis2=-1))

    # What cancels leaves rounding of the terms' own size: that has no direction.
    terms = np.einsum("...i,...ij,...j->...", abs(weights), abs(gramians), abs(weights))
    is_zero = square <= 8 * np.finfo(float).eps * terms
    norm = np.where(is_zero, 0.0, np.sqrt(np.where(is_zero, 0.0, square)))

    products = norm[..., None] * lengths
    has_direction = products > 0
    cosine = np.divide(
        inner_products, products, out=np.full_like(products, np.nan), where=has_direction
    )
    return norm, np.clip(cosine, -1, 1)


def _name_of(weighting: Weighting) -> str:
    name = weighting if isinstance(weighting, str) else getattr(weighting, "__name__", None)
    return str(name or type(weighting).__name__)
