"""The figure of a table that compares plain with asymmetric training."""

import math

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.results.statistics import mean_interval
from lab.studies.cells import TITLES, name_label, why_undefined


def draw_changes(result: xr.Dataset, *, x: str, hue: str | None = None) -> Figure:
    """Draw the change over one label, a panel for each entry of another; the published one hollow.

    A panel without a pair of runs that can be compared says so, and is otherwise empty.

    Args:
        result: From `lab.studies.study.run_cells`.
        x: The label along the horizontal axis.
        hue: The label that has a panel for each entry; None draws one panel.
    """
    entries = [None] if hue is None else list(result[hue].values)
    columns = min(len(entries), 3)
    lines = math.ceil(len(entries) / columns)
    figure, panels = plt.subplots(
        lines,
        columns,
        figsize=(1.2 + 3.4 * columns, 0.5 + 3.2 * lines),
        layout="constrained",
        squeeze=False,
    )

    for ax in panels.flat[len(entries) :]:
        ax.set_axis_off()
    for ax, entry in zip(panels.flat, entries, strict=False):
        part = result if entry is None else result.sel({hue: entry})
        _draw_panel(part, x, ax)
        ax.set_title("" if entry is None else name_label(str(hue), entry))
    for line in panels:
        line[0].set_ylabel("change of test accuracy / points")

    # Of the panel that shows most: one without a change has no entries.
    legends = [ax.get_legend_handles_labels() for ax in panels.flat]
    handles, labels = max(legends, key=lambda legend: len(legend[0]))
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=9)
    return figure


def _draw_panel(part: xr.Dataset, x: str, ax: Axes) -> None:
    ax.axhline(0, color="0.6", linewidth=1)
    ax.set_xlabel(TITLES.get(x, x))

    defined = part.where(part["change"].notnull(), drop=True)
    if not defined.sizes[x]:
        ax.set(xticks=[], yticks=[])
        ax.text(
            0.5,
            0.5,
            why_undefined(part),
            ha="center",
            va="center",
            transform=ax.transAxes,
            bbox={"facecolor": "white", "edgecolor": "none"},
        )
        return

    positions = np.arange(defined.sizes[x])
    change = defined["change"]
    ax.errorbar(
        positions,
        change,
        _half_widths(defined, x),
        fmt="o",
        capsize=4,
        label="here, 95 % interval",
    )

    published = defined["published_change"]
    ax.plot(positions, published, "s", color="C1", fillstyle="none", label="published")

    tick_labels = [str(value) for value in defined[x].values]
    is_long = max(map(len, tick_labels)) > 6
    ax.set_xticks(positions, tick_labels, rotation=20 if is_long else 0)
    ax.margins(x=0.2)


def _half_widths(part: xr.Dataset, x: str) -> list[float]:
    """Return half the t interval of each mean change, that of the table; 0 for a single pair."""
    plain, asymmetric = (part["accuracy"].sel(training=kind) for kind in ("plain", "asymmetric"))
    differences = (asymmetric - plain).transpose(x, "seed").values

    half_widths = []
    for row in differences:
        mean, low, _ = mean_interval(row[np.isfinite(row)].tolist())
        half_widths.append(0.0 if math.isnan(low) else mean - low)
    return half_widths
