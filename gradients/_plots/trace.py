from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from gradients._checks import check_recorded
from resonance_toolkit import Title, check_whole, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_trace(
    trace: xr.Dataset,
    *,
    smooth: int = 1,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw the cosine over all shared parameters along training, as figure 3 of the paper.

    Args:
        trace: With `cosine_total (step)`; one curve per entry of one further dimension, such as
            the architecture.
        smooth: Number of sampled steps to average over; the raw values are drawn pale behind.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Raises:
        ValueError: If the trace has more than one further dimension, or no step, or `smooth` is
            below 1.
        TypeError: If it is not a Dataset.
    """
    check_recorded(trace)
    smooth = check_whole("smooth", smooth)
    cosine = trace["cosine_total"]
    other_dims = [dim for dim in cosine.dims if dim != "step"]
    if len(other_dims) > 1:
        raise ValueError(f"`trace`: expected at most one dimension besides step, got {other_dims}")

    ax = ax or new_axes()
    ax.axhline(0, color="0.6", linewidth=1, zorder=1)

    curves: list[tuple[str | None, xr.DataArray]] = [(None, cosine)]
    if other_dims:
        (dim,) = other_dims
        curves = [(str(value), cosine.sel({dim: value})) for value in cosine[dim].values]

    for label, curve in curves:
        curve = curve.dropna("step")
        means = curve.rolling(step=smooth, center=True, min_periods=1).mean()
        (line,) = ax.plot(curve["step"], means, **{"label": label, "zorder": 3} | style)
        if smooth > 1:
            ax.plot(curve["step"], curve, color=line.get_color(), alpha=0.25, linewidth=0.8)

    ax.set_xlabel("optimizer updates")
    ax.set_ylabel("cosine of main and auxiliary gradients")
    write_title(ax, title, trace)
    if other_dims:
        legend_outside(ax, title=str(other_dims[0]), title_fontsize="small")
    return ax
