from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gradients._checks import check_recorded
from gradients._layer_names import layer_label
from resonance_toolkit import new_axes

if TYPE_CHECKING:
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
    rows = np.arange(cosine.sizes["layer"])
    ax = ax or new_axes(figsize=(7, 1.5 + 0.22 * len(rows)))

    # Symmetric about zero, so that the middle colour means orthogonal gradients.
    largest = float(np.nanmax(np.abs(cosine))) if cosine.notnull().any() else 1.0
    defaults: dict[str, Any] = {
        "cmap": "RdBu",
        "vmin": -largest,
        "vmax": largest,
        "shading": "nearest",
    }
    ax.set_facecolor("0.85")
    mesh = ax.pcolormesh(
        cosine["step"].values, rows, np.ma.masked_invalid(cosine.values), **defaults | style
    )

    labels = [layer_label(str(name)) for name in cosine["layer"].values]
    ax.set_yticks(rows, labels, fontsize=8)
    ax.invert_yaxis()  # the first layer on top
    ax.set_xlabel("optimizer updates")
    ax.figure.colorbar(mesh, ax=ax, label="cosine of main and auxiliary gradients")
    return ax
