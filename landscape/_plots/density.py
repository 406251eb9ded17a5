from typing import Any

import xarray as xr
from matplotlib.axes import Axes


def plot_density(found: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the spectral density on a logarithmic scale, with the extreme eigenvalues.

    Args:
        found: A result of `curvature`.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Returns:
        The axes.

    Raises:
        ValueError: If `found` has no density.
    """
    if "density" not in found or found["density"].isnull().all():
        raise ValueError("`found`: expected a density, got none (was density_runs=0?)")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(layout="constrained")
    density = found["density"].values
    (drawn,) = ax.plot(found["eigenvalue"].values, density, **style)
    ends = [*found["smallest"].values, *found["largest"].values]
    low, high = density.max() * 1e-8, density.max() * 3
    ax.vlines(ends, low, low * 10, color=drawn.get_color(), lw=1, label="extreme eigenvalues")
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel(found["density"].attrs.get("long_name", "density"))
    ax.legend()
    return ax
