from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from resonance_toolkit import Title, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_density(
    curvature: xr.Dataset, *, title: Title = False, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw the spectral density on a logarithmic scale, with the extreme eigenvalues.

    Args:
        curvature: A result of `landscape.curvature`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Returns:
        The axes.

    Raises:
        ValueError: If `curvature` has no density.
    """
    if "density" not in curvature or curvature["density"].isnull().all():
        raise ValueError("`curvature`: expected a density, got none (was density_runs=0?)")
    if ax is None:
        ax = new_axes()

    density = curvature["density"].values
    (curve,) = ax.plot(curvature["eigenvalue"].values, density, **style)

    # Eight decades show the bumps of single eigenvalues; below, Gaussian tails go on for ever.
    low = density.max() * 1e-8
    high = density.max() * 3
    extremes = [*curvature["smallest"].values, *curvature["largest"].values]
    ax.vlines(extremes, low, low * 10, color=curve.get_color(), lw=1, label="extreme eigenvalues")

    ax.set_yscale("log")
    ax.set_ylim(low, high)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel(curvature["density"].attrs.get("long_name", "density"))
    write_title(ax, title, curvature)
    ax.legend()
    return ax
