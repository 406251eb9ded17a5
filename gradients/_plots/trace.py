from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from gradients._plots.check import check_recorded

if TYPE_CHECKING:  # computing needs no matplotlib
    from matplotlib.axes import Axes


def plot_trace(trace: xr.Dataset, *, smooth: int = 1, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the cosine over all shared parameters along training, as figure 3 of the paper.

    Args:
        trace: With `cosine_total (step)`; one curve per entry of one further dimension, such as
            the architecture.
        smooth: Sampled steps to average over, around each; what was measured stays behind, pale.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Raises:
        ValueError: If the trace has more than one further dimension, or no step, or `smooth` is
            below 1.
        TypeError: If it is no Dataset.
    """
    check_recorded(trace)
    cosine = trace["cosine_total"]
    others = [dim for dim in cosine.dims if dim != "step"]
    if len(others) > 1:
        raise ValueError(f"`trace`: expected at most one dimension besides step, got {others}")
    if smooth < 1:
        raise ValueError(f"`smooth`: expected a whole number of at least 1, got {smooth!r}")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    curves = [cosine.sel({others[0]: v}) for v in cosine[others[0]].values] if others else [cosine]
    ax.axhline(0, color="0.6", linewidth=1, zorder=1)
    for curve in curves:
        curve = curve.dropna("step")
        means = curve.rolling(step=smooth, center=True, min_periods=1).mean()
        label = str(curve[others[0]].item()) if others else None
        (line,) = ax.plot(curve["step"], means, **{"label": label, "zorder": 3} | style)
        if smooth > 1:
            ax.plot(curve["step"], curve, color=line.get_color(), alpha=0.25, linewidth=0.8)
    ax.set_xlabel("optimizer updates")
    ax.set_ylabel("cosine of main and auxiliary gradients")
    if others:
        ax.legend(title=str(others[0]))
    return ax
