from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from nudging._plots.blocks import new_axes_for_blocks
from resonance_toolkit import Title, label_places, legend_outside, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NARROWEST = 0.04  # inches of a bar
_FAR_APART = 50.0  # bars that differ by more than this factor need another scale
_MOST_DECADES = 6  # of a logarithmic side; whatever is smaller is as good as zero
_MOST_LABELS = 8  # of decades, both sides together


def plot_nudge(
    result: xr.Dataset,
    *,
    eta: float | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw the change of the loss block by block, as bars; below zero, the credit helps.

    Bars are means over `seed` with a point for each seed, or have an error bar of one standard
    error over samples where there are no seeds. A dash marks the change predicted to first order.
    If bars differ by more than a factor of 50, the scale is logarithmic on both sides of zero. A
    cross on the zero line means that no sample had a credit. If there are so many blocks and rules
    that bars would be too thin, lines over the blocks replace them; a band is one standard error,
    and the prediction is dotted.

    Args:
        result: Of `nudge` or `measure`; may be joined along `rule` and `seed`.
        eta: Which step length, where there are several.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.bar`; of it, lines take colour and alpha.

    Raises:
        ValueError: If there is no `loss_change` over `layer`, or one `eta` must be chosen.
    """
    selected = _select_eta(result, eta)
    dims = set(selected["loss_change"].dims) if "loss_change" in selected else set()
    if not {"layer"} <= dims <= {"layer", "rule", "seed"}:
        raise ValueError("`result`: expected `loss_change` over layer, and rule and seed at most")

    ax = ax or new_axes_for_blocks([str(name) for name in selected["layer"].values])
    change = _with_rule_and_seed(selected["loss_change"])

    # The bars of all rules stand side by side, in the middle 0.8 of a block's place.
    width = 0.8 / change.sizes["rule"]
    figure: Any = ax.figure.figure
    inches_of_place = ax.bbox.width / figure.dpi / change.sizes["layer"]
    is_crowded = width * inches_of_place < _NARROWEST

    for index in range(change.sizes["rule"]):
        shift = 0.0 if is_crowded else (index - (change.sizes["rule"] - 1) / 2) * width
        x = np.arange(change.sizes["layer"]) + shift
        label = {"label": str(change["rule"].values[index])} if "rule" in dims else {}
        if is_crowded:
            color = _draw_rule_as_line(ax, x, selected, index, label, style)
        else:
            color = _draw_bars(ax, x, selected, index, label | {"width": 0.9 * width} | style)
            _draw_prediction(ax, x, selected, index, width)

        empty_places = x[change.isel(rule=index).mean("seed").isnull().values]
        if empty_places.size:
            cross: dict[str, Any] = {"s": 20, "marker": "x", "color": color}
            ax.scatter(empty_places, 0 * empty_places, zorder=3, clip_on=False, **cross)

    if "predicted_change" in selected:
        # One entry in the legend is enough for all rules.
        ax.plot([], [], ":" if is_crowded else "-", color="black", label="to first order")
    _label_axes(ax, change, selected)
    write_title(ax, title, result)
    return ax


def _draw_bars(
    ax: Axes, x: NDArray[Any], selected: xr.Dataset, rule: int, style: dict[str, Any]
) -> Any:
    """Draw the means of one rule with seeds or standard errors; return their colour."""
    values = _with_rule_and_seed(selected["loss_change"]).isel(rule=rule)
    mean = values.mean("seed")
    look: dict[str, Any] = {"color": f"C{rule}", "alpha": 0.75} | style
    bars: Any = ax.bar(x, mean, **look)
    color = bars.patches[0].get_facecolor()[:3]

    if values.sizes["seed"] > 1:
        for row in values.transpose("seed", "layer").values:
            ax.scatter(x, row, s=14, color=color, edgecolor="black", linewidth=0.6, zorder=3)
    elif "loss_change_se" in selected:
        error = _with_rule_and_seed(selected["loss_change_se"]).isel(rule=rule, seed=0)
        ax.errorbar(x, mean, error, fmt="none", ecolor="black", elinewidth=1, capsize=2)
    return color


def _draw_prediction(
    ax: Axes, x: NDArray[Any], selected: xr.Dataset, rule: int, width: float
) -> None:
    if "predicted_change" in selected:
        heights = _with_rule_and_seed(selected["predicted_change"]).isel(rule=rule).mean("seed")
        ax.hlines(heights, x - width / 2, x + width / 2, "black", linewidth=1.2)


def _draw_rule_as_line(
    ax: Axes,
    x: NDArray[Any],
    selected: xr.Dataset,
    rule: int,
    label: dict[str, str],
    style: dict[str, Any],
) -> Any:
    """Draw the means of one rule along the blocks, with all that bars have; return the colour."""
    values = _with_rule_and_seed(selected["loss_change"]).isel(rule=rule)
    mean = values.mean("seed").values
    color = style.get("color", f"C{rule}")
    look: dict[str, Any] = {"color": color, "alpha": style.get("alpha", 1.0)} | label
    ax.plot(x, mean, "-o", linewidth=1.2, markersize=3, **look)

    if values.sizes["seed"] > 1:
        for row in values.transpose("seed", "layer").values:
            ax.scatter(x, row, s=6, color=color, alpha=0.5, linewidth=0)
    elif "loss_change_se" in selected:
        error = _with_rule_and_seed(selected["loss_change_se"]).isel(rule=rule, seed=0).values
        ax.fill_between(x, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)

    if "predicted_change" in selected:
        predicted = _with_rule_and_seed(selected["predicted_change"]).isel(rule=rule).mean("seed")
        ax.plot(x, predicted.values, ":", color=color, linewidth=1.2)
    return color


def _label_axes(ax: Axes, change: xr.DataArray, selected: xr.Dataset) -> None:
    means = change.mean("seed").values
    heights = means[np.isfinite(means) & (means != 0)]
    if heights.size and np.abs(heights).max() > _FAR_APART * np.abs(heights).min():
        _use_log_scale_on_both_sides(ax, heights)

    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlabel("nudged block")
    step_length = f", eta = {float(selected['eta']):g}" if "eta" in selected.coords else ""
    ax.set_ylabel(f"mean change of the loss{step_length}")

    if np.isnan(means).any():
        ax.scatter([], [], s=20, marker="x", color="black", label="no credit")
    legend_outside(ax)
    label_places(ax, [str(name) for name in change["layer"].values])


def _use_log_scale_on_both_sides(ax: Axes, heights: NDArray[np.float64]) -> None:
    """Draw decades above and below zero, and a linear one around it; labels keep apart."""
    from matplotlib.ticker import FixedLocator

    exponents = np.floor(np.log10(np.abs(heights))).astype(int)
    lowest = max(exponents.min(), exponents.max() - _MOST_DECADES)
    ax.set_yscale("symlog", linthresh=10.0**lowest, linscale=1.0)

    # Every n-th decade of both sides has a label, counted from the outermost one.
    below, above = (exponents[heights * side > 0].max(initial=lowest - 1) for side in (-1, 1))
    n_decades = (below - lowest + 1) + (above - lowest + 1)
    distance = -(-n_decades // _MOST_LABELS)  # rounded up
    ticks_below = -(10.0 ** np.arange(below, lowest - 1.0, -distance))
    ticks_above = 10.0 ** np.arange(above, lowest - 1.0, -distance)
    ax.yaxis.set_major_locator(FixedLocator([0.0, *ticks_below, *ticks_above]))


def _select_eta(result: xr.Dataset, eta: float | None) -> xr.Dataset:
    if "eta" not in result.dims:
        return result

    etas = result["eta"].values
    choice = etas[0] if eta is None and len(etas) == 1 else eta
    if choice is None or not np.isclose(etas, choice, rtol=1e-9, atol=0).any():
        expected = ", ".join(f"{number:g}" for number in etas)
        raise ValueError(f"`eta`: expected one of {expected}, got {eta!r}")
    return result.sel(eta=choice, method="nearest")


def _with_rule_and_seed(values: xr.DataArray) -> xr.DataArray:
    """Add axes for rules and seeds where there are none, of length one."""
    for dim in ("rule", "seed"):
        if dim not in values.dims:
            values = values.drop_vars(dim, errors="ignore").expand_dims(dim)
    return values
