from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

if TYPE_CHECKING:  # computing needs no matplotlib
    from matplotlib.axes import Axes

_FAR_APART = 50.0  # bars that differ by more than this factor need another scale
_DECADES = 6  # of a logarithmic side at most, whatever is smaller is as good as zero
_LABELS = 8
_NAMES = 30  # of blocks along an axis at most


def plot_nudge(
    found: xr.Dataset, *, eta: float | None = None, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw the change of the loss block by block, as bars; below zero the credit helps.

    Bars are means over `seed` with a point for each seed, or have an error bar of one standard
    error over samples where there are no seeds. A dash marks the change predicted to first order.
    Bars that differ by more than a factor of 50 are drawn on a logarithmic scale on both sides of
    zero. A cross on the zero line stands where no sample had a credit.

    Args:
        found: Results of `nudge` or `measure`; may be joined along `rule` and `seed`.
        eta: Which step length, where there are several.
        ax: Where to draw; a new figure by default.
        style: Passed on to `Axes.bar`.

    Raises:
        ValueError: If there is no `loss_change` over `layer`, or one `eta` must be chosen.
    """
    chosen = _one_eta(found, eta)
    allowed = {"layer", "rule", "seed"}
    if "loss_change" not in chosen or not {"layer"} <= set(chosen["loss_change"].dims) <= allowed:
        raise ValueError("`found`: expected `loss_change` over layer, and rule and seed at most")
    ax = ax or new_axes([str(name) for name in chosen["layer"].values])
    change = _three(chosen["loss_change"])
    rules = change["rule"].values if "rule" in chosen["loss_change"].dims else [None]
    width = 0.8 / len(rules)
    middle = np.arange(change.sizes["layer"])
    for i, rule in enumerate(rules):
        values = change.isel(rule=i)
        x = middle + (i - (len(rules) - 1) / 2) * width
        mean = values.mean("seed")
        look: dict[str, Any] = {"color": f"C{i}", "alpha": 0.75, "width": 0.9 * width}
        look |= {} if rule is None else {"label": str(rule)}
        bars: Any = ax.bar(x, mean, **look | style)
        color = bars.patches[0].get_facecolor()[:3]
        if values.sizes["seed"] > 1:
            for row in values.transpose("seed", "layer").values:
                ax.scatter(x, row, s=14, color=color, edgecolor="black", linewidth=0.6, zorder=3)
        elif "loss_change_se" in chosen:
            error = _three(chosen["loss_change_se"]).isel(rule=i, seed=0)
            ax.errorbar(x, mean, error, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        if "predicted_change" in chosen:
            predicted = _three(chosen["predicted_change"]).isel(rule=i).mean("seed")
            dash: Any = ax.hlines(predicted, x - width / 2, x + width / 2, "black", linewidth=1.2)
            dash.set_label("to first order" if i == len(rules) - 1 else None)
        empty = x[np.isnan(mean.values)]
        if empty.size:
            ax.scatter(empty, 0 * empty, s=20, marker="x", color=color, zorder=3, clip_on=False)
    _dress(ax, change, chosen)
    return ax


def _dress(ax: Axes, change: xr.DataArray, chosen: xr.Dataset) -> None:
    means = change.mean("seed").values
    means = means[np.isfinite(means) & (means != 0)]
    if means.size and np.abs(means).max() > _FAR_APART * np.abs(means).min():
        _log_on_both_sides(ax, means)
    if change.mean("seed").isnull().any():
        ax.scatter([], [], s=20, marker="x", color="black", label="no credit")
    label_blocks(ax, [str(name) for name in change["layer"].values])
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlabel("nudged block")
    where = f", eta = {float(chosen['eta']):g}" if "eta" in chosen.coords else ""
    ax.set_ylabel(f"mean change of the loss{where}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _log_on_both_sides(ax: Axes, means: NDArray[np.float64]) -> None:
    """Decades above and below zero, and around it a linear one, with labels that keep apart."""
    from matplotlib.ticker import FixedLocator

    exponents = np.floor(np.log10(np.abs(means))).astype(int)
    low = max(exponents.min(), exponents.max() - _DECADES)
    ax.set_yscale("symlog", linthresh=10.0**low, linscale=1.0)
    tops = [exponents[means * side > 0].max(initial=low - 1) for side in (-1, 1)]
    every = -(-sum(top - low + 1 for top in tops) // _LABELS)
    sides = [-(10.0 ** np.arange(tops[0], low - 1.0, -every))]
    sides += [10.0 ** np.arange(tops[1], low - 1.0, -every)]
    ax.yaxis.set_major_locator(FixedLocator([0.0, *np.concatenate(sides)]))


def new_axes(names: list[str]) -> Axes:
    """Axes of a new figure, with room for so many blocks and for their names."""
    import matplotlib.pyplot as plt

    below = 0.06 * max(map(len, names)) if _slanted(names) else 0.0
    size = (max(7.0, 3.0 + 0.3 * min(len(names), _NAMES)), 4.0 + below)
    return plt.subplots(figsize=size, layout="constrained")[1]


def label_blocks(ax: Axes, names: list[str]) -> None:
    """Names along the x axis, slanted if they are long, and not all if they are many."""
    chosen = thinned(len(names), _NAMES)
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(chosen, [names[i] for i in chosen], **slanted if _slanted(names) else {})
    ax.set_xlim(-0.6, len(names) - 0.4)


def thinned(count: int, most: int) -> list[int]:
    """Places at equal distances, from the first on, no more than wanted."""
    return list(range(0, count, -(-count // most)))


def _slanted(names: list[str]) -> bool:
    return sum(map(len, names)) > 70


def _one_eta(found: xr.Dataset, eta: float | None) -> xr.Dataset:
    if "eta" not in found.dims:
        return found
    etas = found["eta"].values
    if eta is None and len(etas) > 1:
        raise ValueError(f"`eta`: expected one of {', '.join(f'{e:g}' for e in etas)}, got None")
    wanted = etas[0] if eta is None else eta
    if not np.isclose(etas, wanted, rtol=1e-9, atol=0).any():
        raise ValueError(f"`eta`: expected one of {', '.join(f'{e:g}' for e in etas)}, got {eta!r}")
    return found.sel(eta=wanted, method="nearest")


def _three(values: xr.DataArray) -> xr.DataArray:
    """With axes for rules and seeds, if only of length one."""
    for dim in ("rule", "seed"):
        if dim not in values.dims:
            values = values.drop_vars(dim, errors="ignore").expand_dims(dim)
    return values
