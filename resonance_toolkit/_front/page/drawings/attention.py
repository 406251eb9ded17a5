"""Pictures of `attention`: statistics by layer, sinks, maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from resonance_toolkit import attention
from resonance_toolkit._front.page.drawings.drawing import Drawing, average_but
from resonance_toolkit._front.page.figure_style import WIDTH, new_figure
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_COLUMNS = 8

# What a share of 1 means for each: uniform attention has an entropy of 1, a Gini of 0.
_STATISTICS = {
    "normalised_entropy": ("entropy / uniform", {"uniform": 1.0}),
    "gini": ("Gini", {"uniform": 0.0}),
    "peak": ("largest weight", {}),
}


def _paint_statistics(result: xr.Dataset) -> Figure:
    averaged = average_but(result, "layer")
    panels = [
        Panel(averaged[name], label, references=references, limits=(-0.03, 1.06))
        for name, (label, references) in _STATISTICS.items()
        if name in averaged
    ]
    return draw_profile(panels)


def _paint_maps(result: xr.Dataset) -> Figure:
    """Draw the maps of the first sample, in as many rows of layers as the page is wide."""
    # Of what a user joined, such as steps or seeds, the first.
    other_dims = [
        dim for dim in result["weight"].dims if dim not in ("layer", "key", "head", "sample")
    ]
    result = result.isel(dict.fromkeys(other_dims, 0))
    n_layers = result.sizes["layer"]
    n_columns = min(n_layers, _MOST_COLUMNS)
    n_rows = -(-n_layers // n_columns)

    figure = new_figure(WIDTH, 0.5 + n_rows * (WIDTH - 1) / max(n_columns, 4))
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    shares = result["weight"].mean("head") if "head" in result["weight"].dims else result["weight"]

    for row in range(n_rows):
        layers = range(row * n_columns, min((row + 1) * n_columns, n_layers))
        row_axes = axes[row : row + 1, : len(layers)]
        attention.plot_maps(
            result.isel(layer=list(layers)),
            axes=row_axes,
            vmax=float(shares.isel(sample=0).max()),  # one scale for all rows
        )

        # The last row may have room left.
        for ax in axes[row, len(layers) :]:
            ax.set_axis_off()

    for ax in np.ravel(axes):
        ax.set_ylabel("")

    return figure


def _paint_sinks(result: xr.Dataset) -> Figure:
    labels = {
        "sink_share": "share of heads with a sink",
        "first_sink_share": "at the first token",
        "massive_share": "massive activation",
    }
    averaged = average_but(result, "layer")
    return draw_profile(
        [Panel(averaged[name], label, limits=(-0.03, 1.05)) for name, label in labels.items()]
    )


_BY_LAYER = Drawing(
    "How widely attention is spread, layer by layer, averaged over heads and samples. Uniform "
    "attention has an entropy of 1 (relative to the largest possible) and a Gini index of 0.",
    _paint_statistics,
)

DRAWINGS = {
    "attention.capture": (
        _BY_LAYER,
        Drawing(
            "Where the model looks in the first sample, averaged over heads, on one scale.",
            _paint_maps,
        ),
    ),
    "attention.capturing": (_BY_LAYER,),
    "attention.statistics": (_BY_LAYER,),
    "attention.sinks": (
        Drawing(
            "How many heads put most of their attention on one token, and whether that token's "
            "activations are massive.",
            _paint_sinks,
        ),
    ),
}
