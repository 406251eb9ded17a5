from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gradients._layer_names import layer_label
from resonance_toolkit import (
    Title,
    check_choice,
    label_rows,
    legend_outside,
    new_axes,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NoiseVariable = Literal["mean", "variance", "noise_scale"]

_TEXTS = {
    "mean": "mean cosine over mini-batches",
    "variance": "variance of the cosine over mini-batches",
    "noise_scale": "gradient noise scale (samples)",
}
_MOST_NAMES = 60  # of layers, one below the other
_ALL_LAYERS = "all layers together"


def plot_noise(
    noise: xr.Dataset,
    *,
    variable: NoiseVariable | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw how far gradients vary from batch to batch, layer by layer, with intervals.

    The first layer is at the top, below a row for all layers together. A noise scale has one colour
    for each loss. A triangle marks an infinite one: the gradient cannot be distinguished from
    noise, and only the lower end of the interval is known.

    Args:
        noise: Of `gradients.noise` or `gradients.noise_scale`.
        variable: `"mean"` or `"variance"` of the cosine, or `"noise_scale"`; by default `"mean"`
            if it is there.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure, as high as there are layers, by default.
        style: For `Axes.errorbar`.

    Returns:
        The Axes.

    Raises:
        ValueError: If there is no such variable with its interval.
    """
    name = _choose_variable(noise, variable)
    layers = [layer_label(str(layer)) for layer in noise["layer"].values]
    rows = [_ALL_LAYERS, *layers]
    if ax is None:
        ax = new_axes(figsize=(6.4, 1.4 + 0.24 * min(len(rows), _MOST_NAMES)))

    curves = _read_curves(noise, name)
    height = 0.5 / len(curves)
    for index, (objective, table) in enumerate(curves.items()):
        shift = (index - (len(curves) - 1) / 2) * height
        look = {"color": f"C{index}", "label": objective} | style
        _draw_rows(ax, table, np.arange(len(rows), dtype=float) + shift, look)

    if name == "noise_scale":
        ax.set_xscale("log")
        _write_numbers_out(ax)
    else:
        ax.axvline(0, color="black", linewidth=0.8, zorder=1)
    ax.axhline(0.5, color="0.6", linewidth=0.8)  # between the whole and its parts

    label_rows(ax, rows)
    ax.set_xlabel(_describe(noise, name))
    ax.grid(axis="x", alpha=0.3)
    write_title(ax, title, noise)
    legend_outside(ax)
    return ax


def _choose_variable(noise: xr.Dataset, variable: str | None) -> str:
    available = [
        name
        for name in _TEXTS
        if {name, f"{name}_low", f"{name}_high", f"{name}_total"} <= set(noise.data_vars)
    ]
    if not available:
        raise ValueError(
            "`noise`: expected a result of gradients.noise or gradients.noise_scale, got "
            f"{', '.join(map(str, noise.data_vars)) or 'no variable'}"
        )
    if variable is None:
        return available[0]
    check_choice("variable", variable, available)
    return variable


def _read_curves(noise: xr.Dataset, name: str) -> dict[str | None, NDArray[np.float64]]:
    """Give, for each objective, `(low | value | high, row)`, the whole first."""
    columns = []
    for end in ("_low", "", "_high"):
        total_name = f"{name}_total{end}"
        total = noise[total_name].expand_dims("layer", axis=-1)
        parts = noise[f"{name}{end}"].transpose(..., "layer")
        columns.append(np.concatenate([total.values, parts.values], axis=-1))

    table = np.stack(columns)
    if table.ndim == 2:
        return {None: table}
    if table.ndim != 3 or "objective" not in noise.dims:
        raise ValueError(f"`noise`: expected {name!r} over layer and objective at most")
    return {str(objective): table[:, i] for i, objective in enumerate(noise["objective"].values)}


def _draw_rows(
    ax: Axes, table: NDArray[np.float64], places: NDArray[np.float64], look: dict[str, Any]
) -> None:
    low, value, high = table
    is_infinite = np.isposinf(value)

    # An infinite end has no place on paper: the bar then reaches to the largest number there is.
    finite = table[np.isfinite(table)]
    edge = 3 * finite.max() if finite.size else 1.0
    value = np.where(is_infinite, np.nan, value)
    high = np.where(np.isposinf(high), edge, high)

    defaults: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2, "linewidth": 1.2}
    margins = np.clip([value - low, high - value], 0, None)
    ax.errorbar(value, places, xerr=margins, **(defaults | look))
    if is_infinite.any():
        color = look["color"]
        ends = np.where(np.isfinite(low), low, edge)[is_infinite]
        ax.hlines(places[is_infinite], ends, edge, color=color, linewidth=1.2)
        where = np.full(int(is_infinite.sum()), edge)
        ax.scatter(where, places[is_infinite], s=28, marker=">", color=color)


def _write_numbers_out(ax: Axes) -> None:
    """Label a few round numbers of a logarithmic axis, as 20 and not as 2 x 10^1."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    ax.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())


def _describe(noise: xr.Dataset, name: str) -> str:
    confidence = noise.attrs.get("confidence")
    if confidence is None:
        return _TEXTS[name]
    return f"{_TEXTS[name]}, {float(confidence):.0%} interval"
