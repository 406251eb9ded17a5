from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from resonance_toolkit import Title, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_line(
    line: xr.Dataset,
    *,
    variable: str = "loss",
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw a line or a curve, with a band of one standard error where the loss has one.

    Args:
        line: A result of `line` or `curve`.
        variable: What to draw.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Returns:
        The axes.

    Raises:
        ValueError: If `line` has no such variable over `alpha` alone.
    """
    if variable not in line or line[variable].dims != ("alpha",):
        raise ValueError(f"`line`: expected {variable!r} over alpha alone")
    if ax is None:
        ax = new_axes()

    alphas = line["alpha"].values
    values = line[variable].values
    values = np.where(np.isfinite(values), values, np.nan)
    (curve,) = ax.plot(alphas, values, **style)

    if variable == "loss" and "loss_se" in line and line["loss_se"].notnull().any():
        error = line["loss_se"].values
        color = curve.get_color()
        ax.fill_between(alphas, values - error, values + error, color=color, alpha=0.2, linewidth=0)

    ax.set_xlabel(line["alpha"].attrs.get("long_name", "alpha"))
    ax.set_ylabel(line[variable].attrs.get("long_name", variable))
    write_title(ax, title, line)
    if style.get("label"):
        legend_outside(ax)
    return ax
