from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from landscape._plots.values import check_plane, finite_values, value_limits
from resonance_toolkit import Title, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_surface(
    surface: xr.Dataset,
    *,
    variable: str = "loss",
    limits: tuple[float, float] | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw a surface in three dimensions.

    Points without a finite value are holes.

    Args:
        surface: A result of `grid`, `plane`, `trajectory` or `curvature_map`.
        variable: What to draw.
        limits: Smallest and largest value of height and colour.
        title: A text, or True for one made from the attributes.
        ax: Where to draw, with `projection="3d"`; a new figure by default.
        style: Passed on to `Axes3D.plot_surface`.

    Returns:
        The axes.

    Raises:
        ValueError: If `surface` has no such variable over `alpha` and `beta`.
    """
    values = check_plane(surface, variable)
    if ax is None:
        ax = new_axes(subplot_kw={"projection": "3d"})

    z = finite_values(values)
    low, high = limits or value_limits(z)
    alphas, betas = np.meshgrid(values["alpha"].values, values["beta"].values, indexing="ij")

    defaults: dict[str, Any] = {
        "cmap": "viridis",
        "vmin": low,
        "vmax": high,
        "rcount": 60,
        "ccount": 60,
        "linewidth": 0,
        "antialiased": True,
    }
    axes: Any = ax  # of three dimensions, which the type does not tell
    axes.plot_surface(alphas, betas, z.filled(np.nan), **(defaults | style))

    axes.set_zlim(low, high if high > low else low + 1e-6)
    axes.set_xlabel("alpha", labelpad=6)
    axes.set_ylabel("beta", labelpad=10)
    axes.set_zlabel(values.attrs.get("long_name", variable), labelpad=16)
    axes.tick_params(axis="z", pad=8)
    axes.locator_params(nbins=5)
    axes.ticklabel_format(axis="z", useOffset=False)
    axes.set_box_aspect(None, zoom=0.8)  # room for the labels, which no layout engine sees
    write_title(ax, title, surface)
    return ax
