from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import Title, new_axes, select, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAIR = ("objective", "other_objective")
_ROOM_FOR_NUMBERS = 0.36  # inches of a cell, for two lines
_MOST_NUMBERS = 12  # objectives; the numbers of more would not fit into their cells


def plot_objectives(
    agreement: xr.Dataset,
    *,
    layer: str | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw the cosines between the gradients of several losses as a matrix.

    Blue means that two losses pull the weights the same way, red that they oppose each other. The
    colours run from -1 to 1, so that figures can be compared. Each cell has the mean over steps
    (batches, seeds), with the standard deviation below. A cell is grey and empty if two losses
    share no parameter.

    Args:
        agreement: Of `compare`, or of `Trace` or `noise`, for two losses or more.
        layer: Of which layer; by default of all shared parameters together.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: For `Axes.pcolormesh`.

    Returns:
        The Axes.

    Raises:
        ValueError: If there are no cosines, or there is no such layer.
    """
    cosines, names = _read_cosines(agreement, layer)
    if ax is None:
        size = 2.2 + 0.75 * min(max(len(names), 2), 12)
        ax = new_axes(figsize=(size + 0.8, size))

    is_finite = np.isfinite(cosines)
    counts = is_finite.sum(0)
    means = np.divide(
        np.where(is_finite, cosines, 0.0).sum(0),
        counts,
        out=np.full(counts.shape, np.nan),
        where=counts > 0,
    )

    ax.set_facecolor("0.85")
    defaults: dict[str, Any] = {"cmap": "RdBu", "vmin": -1, "vmax": 1}
    mesh = ax.pcolormesh(np.ma.masked_invalid(means), **(defaults | style))
    figure: Any = ax.figure.figure
    height_of_cell = ax.bbox.height / figure.dpi / len(names)
    if len(names) <= _MOST_NUMBERS and height_of_cell > _ROOM_FOR_NUMBERS:
        _write_numbers(ax, means, cosines)

    places = np.arange(len(names)) + 0.5
    ax.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(places, names)
    ax.invert_yaxis()  # the first loss at the upper left
    ax.set_aspect("equal")
    label = "cosine of the gradients"
    ax.figure.colorbar(
        mesh, ax=ax, shrink=0.8, label=label if layer is None else f"{label} at {layer}"
    )
    write_title(ax, title, agreement)
    return ax


def _read_cosines(
    agreement: xr.Dataset, layer: str | None
) -> tuple[NDArray[np.float64], list[str]]:
    """Give cosines `(repetition, objective, other_objective)`, and the objectives' names."""
    variable = "cosine_total" if layer is None else "cosine"
    if variable not in agreement:
        raise ValueError(
            f"`agreement`: expected `{variable}` of two losses or more, got "
            f"{', '.join(map(str, agreement.data_vars)) or 'none'}"
        )

    cosine = agreement[variable]
    if layer is not None:
        matched = select([str(name) for name in agreement["layer"].values], layer, argument="layer")
        if len(matched) != 1:
            raise ValueError(f"`layer`: expected one layer, got {len(matched)} by {layer!r}")
        layer = matched[0]
        cosine = cosine.sel(layer=layer)

    if set(_PAIR) <= set(cosine.dims):
        names = [str(name) for name in cosine["objective"].values]
        return cosine.transpose(..., *_PAIR).values.reshape(-1, len(names), len(names)), names

    # Two losses have one cosine; each has a cosine of 1 with itself.
    names = [name.strip() for name in str(agreement.attrs.get("objectives", "")).split(",")]
    if len(names) != 2:
        names = ["main", "auxiliary"]
    values = cosine.values.reshape(-1)
    matrices = np.ones((len(values), 2, 2))
    matrices[:, 0, 1] = matrices[:, 1, 0] = values
    return matrices, names


def _write_numbers(ax: Axes, means: NDArray[np.float64], cosines: NDArray[np.float64]) -> None:
    for row, column in np.ndindex(*means.shape):
        mean = means[row, column]
        if not np.isfinite(mean):
            continue
        text = f"{mean:.2f}"
        if len(cosines) > 1 and row != column:
            text += f"\n± {np.nanstd(cosines[:, row, column]):.2f}"

        # Both ends of the colours are dark.
        color = "white" if abs(mean) > 0.6 else "black"
        ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=color, fontsize=9)
