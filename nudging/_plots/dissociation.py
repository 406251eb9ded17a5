from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from nudging._plots.rankings import Array, find_disagreeing_metrics, largest_means
from nudging._plots.seeds import mean_over_seeds, with_seed_axis
from resonance_toolkit import Title, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TOP = 1.3  # a little above the note over a shaded metric
_TEXT_HEIGHT = 0.062  # of a written value, relative to the height of the axes


def plot_dissociation(
    result: xr.Dataset,
    *,
    metrics: Sequence[str] | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw how several metrics rank rules, and shade metrics that disagree with the mean ranks.

    Each metric is a vertical axis, scaled so that the value of largest size is at 1. (If that value
    is negative, as the loss change of a nudge is, the axis is reversed.) Raw means are written
    beside the points. A metric is shaded if it orders two rules differently than their mean ranks
    over all metrics do. With seeds, a difference within two standard errors is a tie, and every
    seed is a faint point. NaN values, such as a cosine without a reference, are left out of means
    and ranks; "n/a" is written below if nothing remains.

    Args:
        result: Variables over `rule`, and `seed` if there are several, of which each is a metric;
            or one variable over `rule` and `metric`.
        metrics: Which metrics, in this order; by default all.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Raises:
        ValueError: If there are not at least two metrics and two rules, a value is infinite, or a
            metric is nothing but zero and NaN.
    """
    table, labels = _read_table(result, metrics)
    disagrees = find_disagreeing_metrics(table)
    means = mean_over_seeds(table, -1)

    # The sign goes with the scale, so that a metric that is best when negative is turned over.
    scale = largest_means(table)
    scaled_means = means / scale[:, :, 0]
    scaled_table = table / scale
    lowest = min(0.0, float(np.nanmin(scaled_table)))

    ax = ax or new_axes(figsize=(2.0 + 1.7 * len(labels), 4.4))
    _shade_metrics(ax, disagrees)

    rules = [str(rule) for rule in result["rule"].values]
    colors = _draw_rules(ax, rules, scaled_means, scaled_table, style)

    text_height = _TEXT_HEIGHT * (_TOP - lowest)
    for index in range(len(labels)):
        is_missing = np.isnan(scaled_means[index])
        # What is missing stands below all points, one line each.
        below = lowest - 0.02 - text_height * is_missing.cumsum()
        heights = np.where(is_missing, below, scaled_means[index])
        heights = _spread_apart(heights, text_height)
        background = "0.9" if disagrees[index] else "white"
        _write_values(ax, index, means[index], heights, colors, background)

    ax.set_xticks(range(len(labels)), [textwrap.fill(label, 18) for label in labels])
    ax.set_xlim(-0.5, len(labels) - 0.35)
    room_for_missing = text_height * float(np.isnan(means).sum(1).max())
    ax.set_ylim(lowest - 0.08 - room_for_missing, 1.22)
    ax.set_ylabel("relative to the largest of the metric")
    ax.spines[["top", "right"]].set_visible(False)
    write_title(ax, title, result)
    legend_outside(ax)
    return ax


def _shade_metrics(ax: Axes, disagrees: NDArray[np.bool_]) -> None:
    for place in np.flatnonzero(disagrees).tolist():
        ax.axvspan(place - 0.42, place + 0.42, color="0.9", zorder=0, linewidth=0)
        ax.text(place, 1.13, "ranks otherwise", ha="center", va="center", fontsize=9, color="0.35")


def _draw_rules(
    ax: Axes, rules: list[str], scaled_means: Array, scaled_table: Array, style: dict[str, Any]
) -> list[Any]:
    """Draw a line for each rule and a faint point for each seed; return the colours."""
    places = np.arange(len(scaled_means))
    colors = []

    for index, rule in enumerate(rules):
        line_style = {"marker": "o", "color": f"C{index}", "label": rule} | style
        (line,) = ax.plot(places, scaled_means[:, index], **line_style)
        color = line.get_color()
        colors.append(color)

        if scaled_table.shape[2] > 1:
            for seed_values in scaled_table[:, index].T:
                ax.scatter(places, seed_values, s=10, color=color, alpha=0.4, linewidth=0)
    return colors


def _write_values(
    ax: Axes, place: int, values: Array, heights: Array, colors: list[Any], background: str
) -> None:
    box = {"boxstyle": "round,pad=0.15", "fc": background, "lw": 0}
    for value, height, color in zip(values, heights, colors, strict=True):
        ax.annotate(
            "n/a" if np.isnan(value) else f"{value:.3g}",
            (place, height),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=color,
            bbox=box,
            zorder=4,
        )


def _spread_apart(places: Array, gap: float) -> Array:
    """Return the nearest places, in squared distance, that keep a gap and their order."""
    # Here, so that computing does not wait for scipy.optimize to load.
    from scipy.optimize import isotonic_regression

    # With y_k = z_k + k * gap, the gap between y_k and y_{k+1} is kept if z does not decrease.
    order = np.argsort(places, kind="stable")
    offsets = gap * np.arange(len(places))
    spread = np.empty_like(places)
    spread[order] = isotonic_regression(places[order] - offsets).x + offsets
    return spread


def _read_table(result: xr.Dataset, metrics: Sequence[str] | None) -> tuple[Array, list[str]]:
    """Return values over metric, rule and seed, and what the metrics are called."""
    columns = _find_columns(result)
    names = list(columns) if metrics is None else list(metrics)
    if unknown := [name for name in names if name not in columns]:
        raise ValueError(f"`metrics`: expected some of {', '.join(columns)}, got {unknown}")

    rows = []
    for name in names:
        column = with_seed_axis(columns[name])
        if set(column.dims) != {"rule", "seed"}:
            raise ValueError(f"`result`: expected {name} over rule and seed, got {column.dims}")
        rows.append(column.transpose("rule", "seed").values)
    if len(rows) < 2 or rows[0].shape[0] < 2:
        raise ValueError("`result`: expected at least two metrics and two rules")

    # A metric without seeds is the same for all of them.
    n_seeds = max(row.shape[1] for row in rows)
    table = np.stack([np.broadcast_to(row, (len(row), n_seeds)) for row in rows]).astype(float)
    if np.isinf(table).any() or not np.nan_to_num(mean_over_seeds(table, -1)).any(1).all():
        raise ValueError("`result`: expected finite values, and no metric that is all zero or NaN")

    if "metric" in result.dims:
        return table, names
    return table, [str(columns[name].attrs.get("long_name", name)) for name in names]


def _find_columns(result: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the metrics by name: variables, or the labels of one variable."""
    names = [str(name) for name, values in result.data_vars.items() if "rule" in values.dims]
    if len(names) == 1 and "metric" in result[names[0]].dims:
        values = result[names[0]]
        labels = values["metric"].values
        return {str(label): values.sel(metric=label, drop=True) for label in labels}
    return {name: result[name] for name in names}
