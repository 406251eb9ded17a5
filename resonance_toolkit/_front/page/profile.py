"""Values layer by layer, from the top down, in panels side by side: the picture that always fits.

Names stand to the left, where they have room, and are thinned out beyond some fifty.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.figure_style import MUTED, RULE, SERIES, WIDTH, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NAMES = 50
_ROW = 0.21  # inches from one layer to the next, if they are few


@dataclass(frozen=True)
class Panel:
    """One quantity over layers.

    Args:
        values: `(layer)`, or `(series, layer)` by any other dimension.
        label: Below it.
        low: Lower ends of intervals, shaped like `values`.
        high: Upper ends.
        references: Where to draw a dashed line, by what it stands for.
        limits: Of the axis.
    """

    values: xr.DataArray
    label: str
    low: xr.DataArray | None = None
    high: xr.DataArray | None = None
    references: Mapping[str, float] | None = None
    limits: tuple[float, float] | None = None


def draw_profile(panels: Sequence[Panel], *, colours: Sequence[str] = SERIES) -> Figure:
    """Draw panels over the layers of the first one; all have the same series, if any."""
    names = [str(name) for name in panels[0].values["layer"].values]
    names = [name or "(the model itself)" for name in names]
    height = 1.3 + min(max(_ROW * len(names), 1.2), 10.5)
    figure = new_figure(WIDTH, height)
    rows = np.arange(len(names))

    axes: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    letters = 72 // (len(panels) + 1)

    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel, rows, colours)
        ax.set_xlabel(textwrap.fill(panel.label, letters))

    _write_names(axes[0], names)

    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 5))

    return figure


def _draw_panel(ax: Axes, panel: Panel, rows: Any, colours: Sequence[str]) -> None:
    series_dims = [dim for dim in panel.values.dims if dim != "layer"]
    values = panel.values.transpose(*series_dims, "layer")
    table = np.atleast_2d(values.values)
    names = [str(name) for name in values[series_dims[0]].values] if series_dims else [None]

    is_crowded = len(rows) > 60

    for index, (name, numbers) in enumerate(zip(names, table, strict=True)):
        color = colours[index % len(colours)]

        # Series stand a little apart, so that none covers another.
        shifted = rows + (0 if len(names) == 1 else 0.18 * (index - (len(names) - 1) / 2))
        if panel.low is not None and panel.high is not None:
            low = np.atleast_2d(panel.low.transpose(*series_dims, "layer").values)[index]
            high = np.atleast_2d(panel.high.transpose(*series_dims, "layer").values)[index]
            ax.hlines(shifted, low, high, color=color, linewidth=3, alpha=0.35)

        ax.plot(
            numbers,
            shifted,
            marker="o",
            markersize=2.5 if is_crowded else 4.5,
            linewidth=0.9,
            color=color,
            label=name,
        )

    for text, place in (panel.references or {}).items():
        ax.axvline(place, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        ax.annotate(
            text,
            (place, 1),
            (0, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=MUTED,
        )

    if panel.limits is not None:
        ax.set_xlim(*panel.limits)

    ax.grid(axis="y", color=RULE, linewidth=0.5)
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _write_names(ax: Axes, names: list[str]) -> None:
    step = -(-len(names) // _MOST_NAMES)
    ax.set_yticks(range(0, len(names), step), names[::step], fontsize=9 if len(names) < 30 else 7.5)
    ax.set_ylim(len(names) - 0.4, -0.6)  # the first layer on top
