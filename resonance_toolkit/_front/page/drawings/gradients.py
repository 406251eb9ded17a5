"""Pictures of `gradients`: cosines along training and layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xarray as xr

from resonance_toolkit import gradients
from resonance_toolkit._front.page.drawings.drawing import Drawing, average_but, paint_alone
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COSINE = "cosine of main and auxiliary gradient"


def keep_reached_layers(result: xr.Dataset) -> xr.Dataset:
    """Leave out the layers that not both losses reach, of which no cosine is defined."""
    cosine = result["cosine"]
    other_dims = [dim for dim in cosine.dims if dim != "layer"]
    return result.sel(layer=cosine["layer"][cosine.notnull().any(other_dims).values])


def _paint_trace(result: xr.Dataset) -> Figure:
    averaged = average_but(result, "step")
    return paint_alone(gradients.plot_trace, averaged, height=2.8)


def _paint_map(result: xr.Dataset) -> Figure:
    averaged = average_but(keep_reached_layers(result), "step", "layer")
    height = 1.3 + min(0.2 * averaged.sizes["layer"], 9.0)
    return paint_alone(gradients.plot_layers, averaged, height=height)


def _paint_layers(result: xr.Dataset) -> Figure:
    """Draw the cosine of each layer, with the range over batches where there are several."""
    cosine = keep_reached_layers(result)["cosine"]
    other_dims = [dim for dim in cosine.dims if dim != "layer"]
    panel = Panel(
        cosine.mean(other_dims) if other_dims else cosine,
        _COSINE,
        low=cosine.min(other_dims) if other_dims else None,
        high=cosine.max(other_dims) if other_dims else None,
        references={"0": 0.0},
        limits=(-1.05, 1.05),
    )

    return draw_profile([panel])


def _paint_norms(result: xr.Dataset) -> Figure:
    norm = average_but(result, "layer")["gradient_norm"]
    return draw_profile([Panel(norm, "norm of the gradient")])


def _paint_summary(result: xr.Dataset) -> Figure:
    averaged = average_but(result, "layer")
    panel = Panel(
        averaged["mean"],
        "mean cosine, smallest to largest",
        low=averaged["min"],
        high=averaged["max"],
        references={"0": 0.0},
        limits=(-1.05, 1.05),
    )
    return draw_profile([panel])


DRAWINGS = {
    "gradients.Trace": (
        Drawing("The cosine of the two gradients over all shared parameters.", _paint_trace),
        Drawing(
            "The same for each layer and step: blue where both losses pull one way, red where "
            "they pull against each other, grey where one of them does not reach the layer.",
            _paint_map,
        ),
    ),
    "gradients.compare": (
        Drawing(
            "The cosine of the two gradients for each layer that both losses reach: right of zero "
            "they pull one way, left of it against each other.",
            _paint_layers,
        ),
    ),
    "gradients.noise": (
        Drawing(
            "The cosine of the two gradients for each layer; a bar spans the mini-batches.",
            _paint_layers,
        ),
    ),
    "gradients.initial_norm": (
        Drawing("The norm of the loss gradient, layer by layer.", _paint_norms),
    ),
    "gradients.summarise": (
        Drawing(
            "The mean cosine of each layer over training; a bar spans all steps.", _paint_summary
        ),
    ),
}
