"""`/gradients`: both losses at the given weights."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.numbers import Number, as_number, value_of, write_number
from resonance_toolkit._front.page.sections.model import say_loss_of_chance
from resonance_toolkit._front.page.sections.part import (
    Findings,
    examination_of,
    result_of,
)
from resonance_toolkit._front.page.sections.words import describe_cosine, keep_defined


def describe(node: xr.DataTree) -> Findings:
    """Say whether the main and the auxiliary loss ask for the same thing."""
    result = result_of(node)
    cosine = value_of(result, "cosine_total")
    low = value_of(result, "mean_total_low")
    high = value_of(result, "mean_total_high")

    # Without a bootstrap over batches, their range.
    if math.isnan(low) and result.sizes.get("batch", 1) > 1:
        low, high = (value_of(result, "cosine_total", end) for end in ("min", "max"))

    chance = _cosine_of_chance(result)
    reference = "1: one direction; 0: at right angles; \u22121: opposed"
    if not math.isnan(chance):
        reference += f"; two random directions: 0 \u00b1 {write_number(chance)}"

    numbers = [
        Number("cosine of both gradients, all shared parameters", cosine, reference, low, high),
        Number(
            "share of layers in conflict",
            value_of(result, "conflict_share"),
            "layers with a negative cosine; 0.5 for random directions",
        ),
        Number("main loss", value_of(result, "loss_main"), say_loss_of_chance(node)),
        Number("auxiliary loss", value_of(result, "loss_aux"), _say_branches(node)),
        _norm_ratio(result),
    ]
    lead = (
        f"At the given weights the two gradients have a cosine of {write_number(cosine)}: "
        f"{describe_cosine(cosine)}."
        if not math.isnan(cosine)
        else ""
    )

    return Findings(
        lead=lead,
        numbers=keep_defined(numbers),
        meanings=[
            "Each of the two losses asks for a step of the weights. Their cosine says, "
            "layer by layer, whether it is the same step. It holds for these weights only: the "
            "two losses often agree early in training, and less later.",
            "Layers behind the last branch are left out: the auxiliary loss does not reach them, "
            "so they have no cosine.",
        ],
        results=[result],
    )


def _cosine_of_chance(result: xr.Dataset) -> float:
    """Return the standard deviation of the cosine of two random directions, 1 / sqrt(d)."""
    if "n_parameters" not in result.coords or "cosine" not in result:
        return math.nan

    cosine = result["cosine"]
    other_dims = [dim for dim in cosine.dims if dim != "layer"]
    is_shared = cosine.notnull().any(other_dims) if other_dims else cosine.notnull()
    shared = float(result["n_parameters"].where(is_shared).sum())
    return 1 / math.sqrt(shared) if shared else math.nan


def _say_branches(node: xr.DataTree) -> str:
    """Say how many branches add up to the auxiliary loss, and what one of them would have."""
    text = "summed over all branches, times alpha"
    examination = examination_of(node)
    settings = examination.attrs
    layers = [name for name in str(settings.get("layers", "")).split(", ") if name]
    n_branches = as_number(settings.get("n")) * len(layers)
    if math.isnan(n_branches) or not layers:
        return text
    text += f": {n_branches:,.0f} of them"

    # The branches' own loss is a binary cross-entropy for each class, averaged over classes.
    response = examination.children.get("response")
    if response is not None and response.attrs.get("branch_loss") == "bce":
        text += f"; a branch that guesses has {write_number(math.log(2))}"
    return text


def _norm_ratio(result: xr.Dataset) -> Number:
    """Compare the lengths of both gradients over the layers that they share."""
    name = "norm of the auxiliary gradient, divided by that of the main one"
    if not {"norm_main", "norm_aux", "cosine"} <= set(result.data_vars):
        return Number(name, math.nan)

    # The main loss reaches further than the branches do: only what both reach is compared.
    is_shared = result["cosine"].notnull()
    squares = [float((result[n].where(is_shared) ** 2).sum()) for n in ("norm_aux", "norm_main")]
    ratio = math.sqrt(squares[0] / squares[1]) if squares[1] else math.nan

    return Number(
        name,
        ratio if np.isfinite(ratio) else math.nan,
        "1: both contribute equally to a step; grows with alpha and with the number of branches",
    )
