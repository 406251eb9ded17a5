"""Pictures of `landscape`: surfaces, lines, spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from resonance_toolkit import landscape
from resonance_toolkit._front.page.drawings.drawing import Drawing, average_but, paint_alone
from resonance_toolkit._front.page.figure_style import new_figure
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plane_variable(result: xr.Dataset) -> str:
    """Return what to draw of a plane: the loss, or else its first variable."""
    planes = [str(n) for n, v in result.data_vars.items() if set(v.dims) == {"alpha", "beta"}]
    if not planes:
        raise ValueError("no variable over alpha and beta")
    return "loss" if "loss" in planes else planes[0]


def _paint_plane(result: xr.Dataset) -> Figure:
    figure = paint_alone(
        landscape.plot_contour, result, variable=plane_variable(result), height=4.6
    )
    figure.axes[0].set_aspect("equal" if _is_square(result) else "auto")
    return figure


def _is_square(result: xr.Dataset) -> bool:
    # Beyond that, equal units would leave a strip too narrow to read.
    spans = [float(np.ptp(result[name].values)) for name in ("alpha", "beta")]
    return max(spans) < 1.5 * min(spans)


def _paint_curvature(result: xr.Dataset) -> Figure:
    if "layer" in result.dims:
        return draw_profile(
            [
                Panel(result["largest"].max("rank"), "largest eigenvalue"),
                Panel(result["trace"], "trace"),
            ]
        )
    if "density" in result and result["density"].notnull().any():
        return paint_alone(landscape.plot_density, result)

    return _paint_eigenvalues(result)


def _paint_eigenvalues(result: xr.Dataset) -> Figure:
    figure = new_figure(height=2.8)
    ax = figure.add_subplot()

    for index, name in enumerate(("largest", "smallest")):
        ax.plot(result["rank"].values + 1, result[name].values, "o", label=name, color=f"C{index}")

    # Eigenvalues below it are directions in which the loss falls.
    ax.axhline(0, color="0.6", linewidth=0.8)
    ax.locator_params(axis="x", integer=True)
    ax.set(xlabel="rank", ylabel="eigenvalue")
    ax.legend()
    return figure


def _paint_smoothness(result: xr.Dataset) -> Figure:
    averaged = average_but(result, "radius")
    figure = new_figure(height=2.6)
    ax = figure.add_subplot()
    ax.plot(averaged["radius"].values, averaged["sharpness"].values, "o-")
    ax.set(xlabel="distance from the weights", ylabel="largest rise of the loss")
    return figure


_PLANE = Drawing(
    "The loss on a plane through the weights. The step from one colour to the next is the same "
    "everywhere; narrow bands are steep places.",
    _paint_plane,
)
_LINE = Drawing(
    "The loss along a line through the weights; the band is one standard error over samples.",
    lambda result: paint_alone(landscape.plot_line, result, height=3.0),
)

DRAWINGS = {
    "landscape.grid": (_PLANE,),
    "landscape.plane": (_PLANE,),
    "landscape.trajectory": (_PLANE,),
    "landscape.curvature_map": (_PLANE,),
    "landscape.line": (_LINE,),
    "landscape.curve": (_LINE,),
    "landscape.bend": (_LINE,),
    "landscape.smoothness": (
        Drawing("How far the loss rises at most within a distance.", _paint_smoothness),
    ),
    "landscape.curvature": (
        Drawing(
            "The spectrum of the curvature: where the eigenvalues lie. Most are near zero; the "
            "few far to the right are the directions in which the loss is steep.",
            _paint_curvature,
        ),
    ),
    "landscape.dilution": (
        Drawing(
            "The surface over the model and the extra weights, divided by the surface over the "
            "model alone. Bars near the dashed line are explained by shorter directions.",
            lambda result: paint_alone(landscape.plot_dilution, result, height=5.0),
        ),
    ),
}
