"""`/landscape`: the loss around the weights."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.numbers import Number, as_number, value_of, write_number
from resonance_toolkit._front.page.sections.part import Findings, child_of, result_of
from resonance_toolkit._front.page.sections.words import keep_defined


def describe(node: xr.DataTree) -> Findings:
    """Say how the loss rises around the weights, and what branches dilute."""
    surface = result_of(node)
    smoothness = child_of(node, "smoothness")
    dilution = child_of(node, "dilution")
    centre = _loss_at_weights(surface)
    low = value_of(surface, "loss", "min")
    high = value_of(surface, "loss", "max")

    numbers = [
        Number(
            "loss at the weights",
            centre,
            "the mean main loss as above, though perhaps of fewer samples",
        ),
        Number(
            "lowest loss on the plane", low, "the loss at the weights, if they are a minimum here"
        ),
        Number("highest loss on the plane", high, _say_reach(surface)),
        Number(
            "estimated error of the surface",
            as_number(surface.attrs.get("error_estimate")),
            "in units of the loss; 0 if every point was evaluated and none is interpolated",
        ),
        *_roughness_numbers(smoothness),
        *_dilution_numbers(dilution),
    ]

    return Findings(
        lead=_say_lead(centre, low, high, smoothness),
        numbers=keep_defined(numbers),
        meanings=_explain_plane(surface, dilution),
        results=[result for result in (surface, dilution) if result is not None],
        surface=surface if "loss" in surface else None,
    )


def _loss_at_weights(surface: xr.Dataset) -> float:
    if "loss" not in surface or {"alpha", "beta"} - set(surface.dims):
        return math.nan
    # A plane with an even number of points has none at the weights themselves.
    centre = surface["loss"].sel(alpha=0, beta=0, method="nearest")
    is_there = abs(float(centre["alpha"])) < 1e-9 and abs(float(centre["beta"])) < 1e-9
    return float(centre) if is_there and centre.ndim == 0 else math.nan


def _say_reach(surface: xr.Dataset) -> str:
    if "alpha" not in surface.coords:
        return ""
    reach = write_number(float(np.abs(surface["alpha"].values).max()))
    return f"the plane reaches to a distance of {reach} along each axis"


def _roughness_numbers(smoothness: xr.Dataset | None) -> list[Number]:
    if smoothness is None:
        return []

    sharpness = [
        Number(
            f"largest rise of the loss within a distance of {float(radius):g}",
            value_of(smoothness.sel(radius=radius), "sharpness"),
            "0 on a plateau; small in a wide valley",
        )
        for radius in np.atleast_1d(smoothness["radius"].values)
    ]

    return [
        *sharpness,
        Number(
            "mean slope",
            value_of(smoothness, "mean_grad"),
            "0 on a plateau; loss per unit of distance",
        ),
        Number(
            "convex share of the plane",
            value_of(smoothness, "convex_share"),
            "1 for a bowl, 0 for a hilltop; about a third for white noise",
        ),
    ]


def _dilution_numbers(dilution: xr.Dataset | None) -> list[Number]:
    if dilution is None:
        return []

    changes = []
    if "change" in dilution and "statistic" in dilution.coords:
        changes = [
            Number(
                "change of the mean slope if the plane also spans the weights of the branches",
                float(dilution["change"].sel(statistic=name)),
                "0: none; below 0 the surface looks smoother, since the model itself moves less",
            )
            for name in ("mean_grad",)
            if name in dilution["statistic"].values
        ]

    return [
        Number(
            "dilution to expect from the number of parameters",
            value_of(dilution, "factor"),
            "the share of a random direction's length that falls on the model itself; 1 without "
            "branches",
        ),
        *changes,
    ]


def _say_lead(centre: float, low: float, high: float, smoothness: xr.Dataset | None) -> str:
    if math.isnan(centre) or math.isnan(high):
        return ""

    lead = (
        f"The loss is {write_number(centre)} at the weights, and between {write_number(low)} and "
        f"{write_number(high)} on the plane around them."
    )
    share = math.nan if smoothness is None else value_of(smoothness, "convex_share")
    if not math.isnan(share):
        lead += f" On {share:.0%} of the plane the surface curves upwards in every direction."

    return lead


def _explain_plane(surface: xr.Dataset, dilution: xr.Dataset | None) -> list[str]:
    texts = [
        "Each axis is a random direction in the space of the weights; at a distance of 1 the step "
        "is as long as the weights themselves (see `normalisation` under the settings). A plane "
        "shows two of very many directions: if it is smooth, others need not be. The curvature "
        "below concerns all directions."
    ]
    n_evaluations = as_number(surface.attrs.get("n_evaluations"))
    if not math.isnan(n_evaluations) and "loss" in surface:
        n_points = surface["loss"].size
        texts.append(
            f"{int(n_evaluations):,} of {n_points:,} points were evaluated; the others were "
            "interpolated."
            if n_evaluations < n_points
            else f"All {n_points:,} points were evaluated; none is interpolated."
        )

    if dilution is not None:
        texts.append(
            "Branches do not change what the model computes, so they cannot smooth its loss. But a "
            "random direction of the same length that spans model and branches moves the model "
            "less, and the surface looks smoother. The dilution says how much of this to expect."
        )

    return texts
