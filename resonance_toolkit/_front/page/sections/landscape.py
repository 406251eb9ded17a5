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
        Number("loss at the weights", centre),
        Number("lowest loss on the plane", low, "at the weights, if they are a minimum"),
        Number("highest loss on the plane", high),
        Number(
            "estimated error of the surface",
            as_number(surface.attrs.get("error_estimate")),
            "0: every point was evaluated, none is interpolated",
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


def _roughness_numbers(smoothness: xr.Dataset | None) -> list[Number]:
    if smoothness is None:
        return []

    sharpness = [
        Number(
            f"largest rise within {float(radius):g}",
            value_of(smoothness.sel(radius=radius), "sharpness"),
            "0 on a plateau, or in a wide valley",
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
                "change of the mean slope when directions cover the branches as well",
                float(dilution["change"].sel(statistic=name)),
                "0: none; a plane over more parameters moves the backbone less",
            )
            for name in ("mean_grad",)
            if name in dilution["statistic"].values
        ]

    return [
        Number(
            "dilution to expect from counting parameters",
            value_of(dilution, "factor"),
            "1: no branches; the share of a random direction's length that is on the backbone",
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
        "A distance of 1 along an axis is a random direction as long as the weights themselves "
        "(by the normalisation in the attributes). A plane shows two of very many directions: "
        "that it is smooth does not mean that all of them are. The curvature below asks about all."
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
            "Branches do not change what the network computes, so they cannot smooth its loss. "
            "A random direction over backbone and branches only moves the backbone less, and the "
            "plane looks smoother. The dilution says how much of that to expect."
        )

    return texts
