from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from nudging._plots.blocks import new_axes_for_blocks
from nudging._plots.seeds import mean_over_seeds, with_seed_axis
from resonance_toolkit import (
    Title,
    colors_by_order,
    label_places,
    legend_outside,
    thin_out,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TIME_LABELS = {"step": "optimizer updates", "epoch": "epoch"}


def plot_alignment(
    result: xr.Dataset, *, title: Title = False, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw the cosine of credit and gradient by layer, or by layer along training.

    Without `step` (or `epoch`): over the layers, one line per `rule`, with the spread over
    samples as error bars. With it: along training, one line per layer, the deepest darkest. Lines
    are means over `seed`, and every seed is a point. A line ends where the gradient was too small
    to compare with, which a cross at the bottom marks.

    Args:
        result: Of `alignment` or `measure`; may be joined along `rule`, `seed`, and `step` or
            `epoch`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Raises:
        ValueError: If there is no `cosine` over `layer`, or both rules and steps.
    """
    cosine = _read_cosine(result)
    times = [dim for dim in _TIME_LABELS if dim in cosine.dims]
    layer_names = [str(name) for name in cosine["layer"].values]

    ax = ax or new_axes_for_blocks(["along training"] if times else layer_names)
    cosine = with_seed_axis(cosine)
    ax.axhline(0, color="black", linewidth=0.8)
    if times:
        _draw_along_training(ax, cosine, times[0], style)
    else:
        _draw_over_layers(ax, cosine, result, style)

    if cosine.isnull().any():
        ax.scatter([], [], s=20, marker="x", color="black", label="gradient too small")
    ax.set_ylabel(str(cosine.attrs.get("long_name", "cosine")))
    write_title(ax, title, result)
    legend_outside(ax)
    if not times:
        label_places(ax, layer_names)
    return ax


def _read_cosine(result: xr.Dataset) -> xr.DataArray:
    cosine = result.get("cosine")
    dims = set() if cosine is None else set(cosine.dims)
    times = dims & _TIME_LABELS.keys()
    allowed = {"layer", "seed", *(times or ["rule"])}

    if cosine is None or "layer" not in dims or not dims <= allowed or len(times) > 1:
        raise ValueError(
            "`result`: expected `cosine` over layer, seed, and one of rule, step and epoch at "
            f"most, got {'none' if cosine is None else cosine.dims}"
        )
    return cosine


def _draw_along_training(ax: Axes, cosine: xr.DataArray, time: str, style: dict[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    # Colours by depth and not from a cycle, which 48 layers would run through five times.
    layers = cosine["layer"].values
    shades = colors_by_order(len(layers))
    in_legend = thin_out(len(layers))
    for index, (layer, shade) in enumerate(zip(layers, shades, strict=True)):
        values = cosine.sel(layer=layer).transpose("seed", time)
        label = {"label": layer} if index in in_legend else {}
        _draw_line(ax, values[time].values, values.values, {"color": shade} | label | style)

    # By hand, since the crosses of empty steps do not widen the axis.
    places = cosine[time].values
    margin = 0.05 * float(places.max() - places.min()) or 0.5
    ax.set_xlim(places.min() - margin, places.max() + margin)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(str(cosine[time].attrs.get("long_name", _TIME_LABELS[time])))


def _draw_over_layers(
    ax: Axes, cosine: xr.DataArray, result: xr.Dataset, style: dict[str, Any]
) -> None:
    has_rules = "rule" in cosine.dims
    rules = cosine["rule"].values if has_rules else [None]
    places = np.arange(cosine.sizes["layer"])

    for index, rule in enumerate(rules):
        selection = {"rule": index} if has_rules else {}
        values = cosine.isel(selection).transpose("seed", "layer").values
        color = style.get("color", f"C{index}")
        label = {"label": str(rule)} if has_rules else {}

        # Side by side, so that error bars do not cover each other.
        shifted = places + 0.08 * (index - (len(rules) - 1) / 2)
        _draw_line(ax, shifted, values, {"color": color} | label | style)

        if "cosine_sd" in result and len(values) == 1:
            spread = result["cosine_sd"].isel(selection).squeeze().values
            ax.errorbar(shifted, values[0], spread, fmt="none", ecolor=color, capsize=2, alpha=0.6)

    ax.set_xlabel("block")


def _draw_line(
    ax: Axes, x: NDArray[Any], values_by_seed: NDArray[Any], style: dict[str, Any]
) -> None:
    """Draw the mean over seeds, a point for each seed, and a cross where there is nothing."""
    has_one_seed = len(values_by_seed) == 1
    mean = mean_over_seeds(values_by_seed, 0)
    ax.plot(x, mean, **{"marker": "o" if has_one_seed else None, "markersize": 4} | style)

    if not has_one_seed:
        for values in values_by_seed:
            ax.scatter(x, values, s=12, color=style["color"], alpha=0.6, linewidth=0)

    empty_places = np.asarray(x)[np.isnan(mean)]
    if empty_places.size:
        on_axis = ax.get_xaxis_transform()  # data along x, share of the height along y
        bottom = np.full(empty_places.shape, 0.03)
        ax.scatter(empty_places, bottom, s=20, marker="x", color="black", transform=on_axis)
