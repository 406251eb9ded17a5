from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from landscape._plots.values import check_plane, finite_values, value_limits
from resonance_toolkit import Title, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEVELS = 25


def plot_contour(
    surface: xr.Dataset,
    *,
    variable: str = "loss",
    log: bool = False,
    limits: tuple[float, float] | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw a surface as filled contours, with its training path or its models, if any.

    Points without a finite value stay white and are marked by a cross.

    Args:
        surface: A result of `grid`, `plane`, `trajectory` or `curvature_map`.
        variable: What to draw.
        log: Space the levels evenly in the logarithm.
        limits: Smallest and largest value of the colour scale; those of the surface by default.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.contourf`.

    Returns:
        The axes.

    Raises:
        ValueError: If `surface` has no such variable over `alpha` and `beta`.
    """
    from matplotlib.colors import LogNorm, Normalize

    values = check_plane(surface, variable)
    z = finite_values(values)
    low, high = limits or value_limits(z)
    if low >= high:
        high = low + max(abs(low), 1) * 1e-6  # levels must increase
    if log and low <= 0:
        raise ValueError(f"`log`: expected positive values of {variable}, got {low}")
    if ax is None:
        ax = new_axes()

    defaults: dict[str, Any] = {
        "levels": np.geomspace(low, high, _LEVELS) if log else np.linspace(low, high, _LEVELS),
        "norm": LogNorm(low, high) if log else Normalize(low, high),
        "cmap": "viridis",
        "extend": "both" if limits else "neither",
    }
    alphas = values["alpha"].values
    betas = values["beta"].values
    contours = ax.contourf(alphas, betas, z.T, **(defaults | style)) if z.count() else None

    holes = np.argwhere(np.ma.getmaskarray(z))
    if len(holes):
        rows, columns = holes.T
        ax.plot(alphas[rows], betas[columns], "x", color="0.6", ms=3, label="not finite")

    _mark_models(surface, ax)
    ax.set_xlabel(values["alpha"].attrs.get("long_name", "alpha"))
    ax.set_ylabel(values["beta"].attrs.get("long_name", "beta"))
    write_title(ax, title, surface)
    legend_outside(ax, side="bottom", ncols=3)

    # After the legend, so that the bar is as high as the axes that the legend leaves.
    if contours is not None:
        label = values.attrs.get("long_name", variable)
        ax.figure.colorbar(contours, ax=ax, label=label, format="%.3g")
    return ax


def _mark_models(surface: xr.Dataset, ax: Axes) -> None:
    """Draw the path, the three models, or the one model that a surface is about."""
    if "path_alpha" in surface:
        alphas = surface["path_alpha"].values
        betas = surface["path_beta"].values
        ax.plot(alphas, betas, "-o", color="white", mec="black", mew=0.5, ms=4, label="path")
        ax.plot(
            alphas[-1:], betas[-1:], "*", color="red", mec="black", mew=0.5, ms=12, label="last"
        )

    elif "model_alpha" in surface:
        places = zip(surface["model_alpha"].values, surface["model_beta"].values, strict=True)
        for number, place in enumerate(places):
            alpha, beta = place
            ax.plot([alpha], [beta], "o", color="white", mec="black", ms=7)
            ax.annotate(
                f"{number}", place, xytext=(6, 6), textcoords="offset points", color="white"
            )

    elif "made_by" in surface.attrs and 0 in surface["alpha"].values:
        ax.plot([0], [0], "+", color="red", ms=10, mew=1.5, label="the model")
