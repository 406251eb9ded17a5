from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

if TYPE_CHECKING:  # computing needs no matplotlib
    from matplotlib.axes import Axes

Array = NDArray[np.float64]


def plot_dissociation(
    found: xr.Dataset,
    *,
    metrics: Sequence[str] | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw how several metrics rank rules, and shade the metrics that rank them otherwise.

    Each metric is a vertical axis, scaled so that the value of largest size is at 1 (a metric
    whose largest value is negative, such as the loss change of a nudge, is turned over); raw means
    are written beside the points. Shaded is a metric that puts two rules in the other order than
    their mean ranks over all metrics do. With seeds, a difference within two standard errors is a
    tie, and every seed is a faint point. What is NaN (a cosine without a reference, say) is left
    out of means and ranks; "n/a" stands below where nothing remains.

    Args:
        found: Variables over `rule`, and `seed` if there are several, of which each is a metric;
            or one variable over `rule` and `metric`.
        metrics: Which metrics, in this order; by default all.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.plot`.

    Raises:
        ValueError: If there are not at least two metrics and two rules, a value is infinite, or a
            metric is nothing but zero and NaN.
    """
    table, labels = _table(found, metrics)
    rules = [str(m) for m in found["rule"].values]
    means, turned = _mean(table), _largest(table)
    odd = disagreeing(table)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(2.0 + 1.7 * len(labels), 4.4), layout="constrained")
    scaled, dots = means / turned, table / turned[:, :, None]
    low = min(0.0, float(np.nanmin(dots)))
    at = np.arange(len(labels))
    for j in at[odd]:
        ax.axvspan(j - 0.42, j + 0.42, color="0.9", zorder=0, linewidth=0)
        ax.text(j, 1.13, "ranks otherwise", ha="center", va="center", fontsize=9, color="0.35")
    colors = []
    for i, rule in enumerate(rules):
        (line,) = ax.plot(
            at, scaled[:, i], **{"marker": "o", "color": f"C{i}", "label": rule} | style
        )
        colors.append(line.get_color())
        if table.shape[2] > 1:
            for seed in dots[:, i].T:
                ax.scatter(at, seed, s=10, color=line.get_color(), alpha=0.4, linewidth=0)
    for j in at:
        box = {"boxstyle": "round,pad=0.15", "fc": "0.9" if odd[j] else "white", "lw": 0}
        gap, missing = 0.062 * (1.3 - low), np.isnan(scaled[j])
        wanted = np.where(missing, low - 0.02 - gap * missing.cumsum(), scaled[j])
        for i, y in enumerate(_apart(wanted, gap)):
            text = "n/a" if np.isnan(means[j, i]) else f"{means[j, i]:.3g}"
            ax.annotate(
                text, (j, y), (7, 0), textcoords="offset points", va="center", fontsize=9,
                color=colors[i], bbox=box, zorder=4,
            )  # fmt: skip
    ax.set_xticks(at, [textwrap.fill(label, 18) for label in labels])
    ax.set_xlim(-0.5, len(labels) - 0.35)
    below = 0.062 * (1.3 - low) * float(np.isnan(means).sum(1).max())
    ax.set_ylim(low - 0.08 - below, 1.22)
    ax.set_ylabel("relative to the largest of the metric")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def disagreeing(table: Array) -> NDArray[np.bool_]:
    """Of `(metric, rule, seed)`, the metrics with a pair of rules against the mean ranks."""
    order = _orders(table / _largest(table)[:, :, None])
    # A rule's mean rank, counted from how many others it beats and is beaten by.
    standing = order.sum(-1).mean(0)
    consensus = np.sign(np.round(standing[:, None] - standing[None], 9))
    odd: NDArray[np.bool_] = (order * consensus < 0).any((1, 2))
    return odd


def _orders(table: Array) -> Array:
    """Of `(metric, rule, seed)`, 1 where one rule is above another, -1 below, 0 for ties."""
    means, count = _mean(table), np.isfinite(table).sum(-1)
    difference = means[:, :, None] - means[:, None]
    tie = np.zeros_like(difference)
    if table.shape[-1] > 1:
        off = np.where(count > 1, count - 1, np.nan) * count
        squares = np.nansum((table - means[:, :, None]) ** 2, -1) / off
        tie = 2 * np.sqrt(squares[:, :, None] + squares[:, None])
    return np.where(np.abs(difference) > tie, np.sign(difference), 0.0)


def _mean(table: Array) -> Array:
    """Over the seeds that have a value."""
    count = np.isfinite(table).sum(-1)
    return np.where(count > 0, np.nansum(table, -1) / np.maximum(count, 1), np.nan)


def _largest(table: Array) -> Array:
    """Of `(metric, rule, seed)`, each metric's mean of largest size, as a column."""
    means = _mean(table)
    return np.take_along_axis(means, np.nanargmax(np.abs(means), 1)[:, None], 1)


def _apart(places: Array, gap: float) -> Array:
    """The nearest places that keep a gap between each other, in the same order."""
    order = np.argsort(places, kind="stable")
    clusters: list[list[float]] = []  # each the wanted places, spread around their mean
    for place in places[order]:
        clusters.append([float(place)])
        while len(clusters) > 1 and _top(clusters[-2], gap) + gap > _bottom(clusters[-1], gap):
            last = clusters.pop()
            clusters[-1] += last
    spread = [_bottom(c, gap) + gap * k for c in clusters for k in range(len(c))]
    found = np.empty_like(places)
    found[order] = spread
    return found


def _bottom(cluster: list[float], gap: float) -> float:
    return float(np.mean(cluster)) - gap * (len(cluster) - 1) / 2


def _top(cluster: list[float], gap: float) -> float:
    return float(np.mean(cluster)) + gap * (len(cluster) - 1) / 2


def _table(found: xr.Dataset, metrics: Sequence[str] | None) -> tuple[Array, list[str]]:
    """Values over metric, rule and seed, and what the metrics are called."""
    names = [str(n) for n, v in found.data_vars.items() if "rule" in v.dims]
    if len(names) == 1 and "metric" in found[names[0]].dims:
        whole = found[names[0]]
        columns = {str(m): whole.sel(metric=m, drop=True) for m in whole["metric"].values}
    else:
        columns = {name: found[name] for name in names}
    wanted = list(columns) if metrics is None else list(metrics)
    if unknown := [name for name in wanted if name not in columns]:
        raise ValueError(f"`metrics`: expected some of {', '.join(columns)}, got {unknown}")
    rows = []
    for name in wanted:
        column = (
            columns[name] if "seed" in columns[name].dims else columns[name].expand_dims("seed")
        )
        if set(column.dims) != {"rule", "seed"}:
            raise ValueError(f"`found`: expected {name} over rule and seed, got {column.dims}")
        rows.append(column.transpose("rule", "seed").values)
    if len(rows) < 2 or rows[0].shape[0] < 2:
        raise ValueError("`found`: expected at least two metrics and two rules")
    seeds = max(row.shape[1] for row in rows)
    table = np.stack([np.broadcast_to(row, (len(row), seeds)) for row in rows]).astype(float)
    if np.isinf(table).any() or not np.nan_to_num(_mean(table)).any(1).all():
        raise ValueError("`found`: expected finite values, and no metric that is all zero or NaN")
    labels = [str(columns[name].attrs.get("long_name", name)) for name in wanted]
    return table, wanted if "metric" in found.dims else labels
