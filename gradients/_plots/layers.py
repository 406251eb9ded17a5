from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gradients._checks import check_recorded
from gradients._layer_names import layer_label
from resonance_toolkit import Title, label_rows, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_layers(
    trace: xr.Dataset, *, title: Title = False, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw the cosine of each layer at each sampled step, as a map; grey where undefined.

    Args:
        trace: With `cosine (step, layer)`; `regroup` it first if it has very many layers.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure, as high as there are layers, by default.
        style: Passed on to `Axes.pcolormesh`.

    Raises:
        ValueError: If the trace has other dimensions, or no step.
        TypeError: If it is not a Dataset.
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
    }
    ax.set_facecolor("0.85")
    # Edges, since from the middle of one layer, or one step, nobody knows how wide it is.
    row_edges = np.arange(len(rows) + 1) - 0.5
    step_edges = _edges_around(cosine["step"].values.astype(float))
    mesh = ax.pcolormesh(
        step_edges, row_edges, np.ma.masked_invalid(cosine.values), **defaults | style
    )

    label_rows(ax, [layer_label(str(name)) for name in cosine["layer"].values])
    ax.set_xlabel("optimizer updates")
    ax.figure.colorbar(mesh, ax=ax, label="cosine of main and auxiliary gradients")
    write_title(ax, title, trace)
    return ax


def _edges_around(middles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the edges of cells that meet half-way between their middles."""
    if len(middles) == 1:
        return np.array([middles[0] - 0.5, middles[0] + 0.5])

    inner_edges = (middles[1:] + middles[:-1]) / 2
    first_edge = 2 * middles[0] - inner_edges[0]
    last_edge = 2 * middles[-1] - inner_edges[-1]
    return np.concatenate([[first_edge], inner_edges, [last_edge]])
