from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gradients._plots.check import check_recorded

if TYPE_CHECKING:  # computing needs no matplotlib
    from matplotlib.axes import Axes


def plot_layers(trace: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the cosine of each layer at each sampled step, as a map; grey where undefined.

    Args:
        trace: With `cosine (step, layer)`; `regroup` it first if it has very many layers.
        ax: Where to draw; a new figure, as high as there are layers, by default.
        style: Passed on to `Axes.pcolormesh`.

    Raises:
        ValueError: If the trace has other dimensions, or no step.
        TypeError: If it is no Dataset.
    """
    check_recorded(trace)
    cosine = trace["cosine"]
    if set(cosine.dims) != {"step", "layer"}:
        raise ValueError(f"`trace`: expected `cosine (step, layer)`, got {dict(cosine.sizes)}")
    cosine = cosine.transpose("layer", "step")
    if ax is None:
        import matplotlib.pyplot as plt

        height = 1.5 + 0.22 * cosine.sizes["layer"]
        _, ax = plt.subplots(figsize=(7, height), layout="constrained")
    largest = float(np.nanmax(np.abs(cosine))) if cosine.notnull().any() else 1.0
    ax.set_facecolor("0.85")
    options: dict[str, Any] = {"cmap": "RdBu", "vmin": -largest, "vmax": largest}
    drawn = ax.pcolormesh(
        cosine["step"].values,
        np.arange(cosine.sizes["layer"]),
        np.ma.masked_invalid(cosine.values),
        **options | {"shading": "nearest"} | style,
    )
    ax.set_yticks(np.arange(cosine.sizes["layer"]), cosine["layer"].values, fontsize=8)
    ax.invert_yaxis()  # the first layer on top
    ax.set_xlabel("optimizer updates")
    ax.figure.colorbar(drawn, ax=ax, label="cosine of main and auxiliary gradients")
    return ax
