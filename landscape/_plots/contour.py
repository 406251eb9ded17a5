from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from landscape._plots.values import check_plane, finite


def plot_contour(
    surface: xr.Dataset,
    *,
    variable: str = "loss",
    log: bool = False,
    limits: tuple[float, float] | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw a surface as filled contours, with the path or the models that it has.

    Points without a finite value are left white, with a cross.

    Args:
        surface: A result of `grid`, `plane`, `trajectory` or `curvature_map`.
        variable: What to draw.
        log: Space the levels evenly in the logarithm.
        limits: Smallest and largest value of the colour scale; those of the surface by default.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.contourf`.

    Returns:
        The axes.

    Raises:
        ValueError: If `surface` has no such variable over `alpha` and `beta`.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(layout="constrained")
    values = check_plane(surface, variable)
    z = finite(values)
    low, high = limits or ((float(z.min()), float(z.max())) if z.count() else (0.0, 1.0))
    low, high = (low, high) if low < high else (low, low + max(abs(low), 1) * 1e-6)
    if log and low <= 0:
        raise ValueError(f"`log`: expected positive values of {variable}, got {low}")
    levels = np.geomspace(low, high, 25) if log else np.linspace(low, high, 25)
    norm = LogNorm(low, high) if log else Normalize(low, high)
    defaults: dict[str, Any] = {"levels": levels, "norm": norm, "cmap": "viridis"}
    defaults["extend"] = "both" if limits else "neither"
    a, b = values["alpha"].values, values["beta"].values
    if z.count():
        drawn = ax.contourf(a, b, z.T, **(defaults | style))
        label = values.attrs.get("long_name", variable)
        ax.figure.colorbar(drawn, ax=ax, label=label, format="%.3g")
    missing = np.argwhere(np.ma.getmaskarray(z))
    if len(missing):
        ax.plot(a[missing[:, 0]], b[missing[:, 1]], "x", color="0.6", ms=3, label="not finite")
    _overlay(surface, ax)
    ax.set_xlabel(values["alpha"].attrs.get("long_name", "alpha"))
    ax.set_ylabel(values["beta"].attrs.get("long_name", "beta"))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", framealpha=0.9)
    return ax


def _overlay(surface: xr.Dataset, ax: Axes) -> None:
    if "path_alpha" in surface:
        a, b = surface["path_alpha"].values, surface["path_beta"].values
        ax.plot(a, b, "-o", color="white", mec="black", mew=0.5, ms=4, label="path")
        ax.plot(a[-1:], b[-1:], "*", color="red", mec="black", mew=0.5, ms=12, label="last")
    elif "model_alpha" in surface:
        places = zip(surface["model_alpha"].values, surface["model_beta"].values, strict=True)
        for i, (a, b) in enumerate(places):
            ax.plot([a], [b], "o", color="white", mec="black", ms=7)
            ax.annotate(f"{i}", (a, b), xytext=(6, 6), textcoords="offset points", color="white")
    elif "made_by" in surface.attrs and 0 in surface["alpha"].values:
        ax.plot([0], [0], "+", color="red", ms=10, mew=1.5, label="the model")
