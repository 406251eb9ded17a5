from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from nudging._plots.nudge import label_blocks, new_axes, thinned

if TYPE_CHECKING:  # computing needs no matplotlib
    from matplotlib.axes import Axes

_TIMES = ("step", "epoch")
_ENTRIES = 12  # of layers in a legend at most


def plot_alignment(found: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the cosine of credit and gradient by layer, or by layer along training.

    Without `step` (or `epoch`): over the layers, one line per `rule`, with the spread over
    samples as error bars. With it: along training, one line per layer, the deepest darkest. Lines
    are means over `seed`, and every seed is a point. A line ends where the gradient was too small
    to compare with, which a cross at the bottom marks.

    Args:
        found: Results of `alignment` or `measure`; may be joined along `rule`, `seed`, and
            `step` or `epoch`.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Raises:
        ValueError: If there is no `cosine` over `layer`, or both rules and steps.
    """
    cosine = found.get("cosine")
    times = [dim for dim in _TIMES if cosine is not None and dim in cosine.dims]
    allowed = {"layer", "seed", *(times or ["rule"])}
    if cosine is None or not {"layer"} <= set(cosine.dims) <= allowed or len(times) > 1:
        raise ValueError(
            "`found`: expected `cosine` over layer, seed, and one of rule, step and epoch at "
            f"most, got {'none' if cosine is None else cosine.dims}"
        )
    ax = ax or new_axes(["along training"] if times else [str(n) for n in cosine["layer"].values])
    cosine = cosine if "seed" in cosine.dims else cosine.expand_dims("seed")
    ax.axhline(0, color="black", linewidth=0.8)
    if times:
        _along(ax, cosine, times[0], style)
    else:
        _over_layers(ax, cosine, found, style)
    if cosine.isnull().any():
        ax.scatter([], [], s=20, marker="x", color="black", label="gradient too small")
    ax.set_ylabel(str(cosine.attrs.get("long_name", "cosine")))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _along(ax: Axes, cosine: xr.DataArray, time: str, style: dict[str, Any]) -> None:
    import matplotlib as mpl
    from matplotlib.ticker import MaxNLocator

    shades = mpl.colormaps["viridis_r"](np.linspace(0.1, 0.95, cosine.sizes["layer"]))
    named = thinned(len(shades), _ENTRIES)
    for i, (layer, shade) in enumerate(zip(cosine["layer"].values, shades, strict=True)):
        values = cosine.sel(layer=layer).transpose("seed", time)
        label = {"label": layer} if i in named else {}
        look = {"color": shade} | label | style
        _line(ax, values[time].values, values.values, look)
    at = cosine[time].values  # all of them: crosses do not widen the axis
    margin = 0.05 * float(at.max() - at.min()) or 0.5
    ax.set_xlim(at.min() - margin, at.max() + margin)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    about = {"step": "optimizer updates", "epoch": "epoch"}
    ax.set_xlabel(str(cosine[time].attrs.get("long_name", about[time])))


def _over_layers(ax: Axes, cosine: xr.DataArray, found: xr.Dataset, style: dict[str, Any]) -> None:
    several = "rule" in cosine.dims
    x = np.arange(cosine.sizes["layer"])
    for i, rule in enumerate(cosine["rule"].values if several else [None]):
        at = {"rule": i} if several else {}
        values = cosine.isel(at).transpose("seed", "layer").values
        color = style.get("color", f"C{i}")
        label = {"label": str(rule)} if several else {}
        # Side by side, so that error bars do not cover each other.
        shifted = x + (0.08 * (i - (cosine.sizes["rule"] - 1) / 2) if several else 0.0)
        _line(ax, shifted, values, {"color": color} | label | style)
        if "cosine_sd" in found and len(values) == 1:
            spread = found["cosine_sd"].isel(at).squeeze().values
            ax.errorbar(shifted, values[0], spread, fmt="none", ecolor=color, capsize=2, alpha=0.6)
    label_blocks(ax, [str(name) for name in cosine["layer"].values])
    ax.set_xlabel("block")


def _line(ax: Axes, x: Any, values: Any, style: dict[str, Any]) -> None:
    """The mean over seeds, a point for each seed, and a cross where there is nothing."""
    known = np.isfinite(values)
    count = known.sum(0)
    mean = np.where(count > 0, np.where(known, values, 0).sum(0) / np.maximum(count, 1), np.nan)
    ax.plot(x, mean, **{"marker": "o" if len(values) == 1 else None, "markersize": 4} | style)
    color = style["color"]
    if len(values) > 1:
        for seed in values:
            ax.scatter(x, seed, s=12, color=color, alpha=0.6, linewidth=0)
    empty = np.asarray(x)[count == 0]
    if empty.size:
        on_axis = ax.get_xaxis_transform()  # data along x, share of the height along y
        bottom = np.full(empty.shape, 0.03)
        ax.scatter(empty, bottom, s=20, marker="x", color="black", transform=on_axis)
