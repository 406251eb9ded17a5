"""Pictures of the experiment that `examine` makes: plain against branches, seed by seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.drawings.drawing import Drawing
from resonance_toolkit._front.page.figure_style import MUTED, SERIES, WIDTH, new_figure
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ARMS = {"plain": SERIES[4], "branches": SERIES[0]}
_COLUMNS = {"accuracy": "held-out accuracy", "loss": "held-out loss", "train_loss": "training loss"}


def is_response(result: xr.Dataset) -> bool:
    """Tell whether this is the experiment of plain and branches."""
    return "arm" in result.dims and {"seed", "step"} <= set(result.dims)


def _paint_curves(result: xr.Dataset) -> Figure:
    names = [name for name in _COLUMNS if name in result and bool(result[name].notnull().any())]
    if not names:
        raise ValueError("no loss and no accuracy")

    figure = new_figure(WIDTH, 3.2)
    axes = figure.subplots(1, len(names), squeeze=False)[0]

    for ax, name in zip(axes, names, strict=True):
        for arm in map(str, result["arm"].values):
            _draw_arm(ax, result[name].sel(arm=arm).transpose("seed", "step"), arm)

        ax.set_title(_COLUMNS[name])
        ax.set_xlabel("updates")
        ax.locator_params(nbins=4)

    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure


def _draw_arm(ax: Axes, values: xr.DataArray, arm: str) -> None:
    color = _ARMS.get(arm, SERIES[1])
    label = "with branches" if arm == "branches" else arm
    steps = values["step"].values
    for row in values.values:
        ax.plot(steps, row, color=color, linewidth=0.7, alpha=0.35)
    ax.plot(steps, values.mean("seed").values, color=color, linewidth=2.2, label=label)


def _paint_cosines(result: xr.Dataset) -> Figure:
    if "cosine_total" not in result or result["cosine_total"].isnull().all():
        raise ValueError("no cosine")

    figure = new_figure(WIDTH, 2.8)
    ax = figure.add_subplot()
    total = result["cosine_total"].transpose("seed", "trace_step")
    steps = total["trace_step"].values
    ax.axhline(0, color=MUTED, linewidth=0.8)

    for row in total.values:
        ax.plot(steps, row, color=SERIES[0], linewidth=0.7, alpha=0.35)

    ax.plot(steps, total.mean("seed").values, color=SERIES[0], linewidth=2.2)

    # Zero in the middle, and never so near that small cosines look large.
    largest = float(np.nanmax(np.abs(total.values)))
    ax.set_ylim(-max(0.3, 1.1 * largest), max(0.3, 1.1 * largest))
    ax.set(xlabel="updates", ylabel="cosine of both gradients")
    return figure


def _paint_layers(result: xr.Dataset) -> Figure:
    """Draw what is there by layer: cosines while training, and what listening heads read."""
    # Layers after the last branch get no auxiliary gradient: they have no cosine to draw.
    cosine = result["cosine"].mean("trace_step")
    cosine = cosine.sel(layer=cosine["layer"][cosine.notnull().any("seed").values])
    panel = Panel(
        cosine.mean("seed"),
        "cosine of both gradients, mean over updates",
        low=cosine.min("seed"),
        high=cosine.max("seed"),
        references={"0": 0.0},
        limits=(-1.05, 1.05),
    )

    return draw_profile([panel])


def _paint_listening(result: xr.Dataset) -> Figure:
    is_accuracy = bool(
        "listening_accuracy" in result and result["listening_accuracy"].notnull().any()
    )
    name = "listening_accuracy" if is_accuracy else "listening_loss"
    values = result[name].rename(point="layer")
    if values.isnull().all():
        raise ValueError("nothing was listened to")

    means = values.mean("seed").assign_coords(
        arm=[{"branches": "with branches"}.get(str(arm), str(arm)) for arm in values["arm"].values]
    )
    label = "listening accuracy" if is_accuracy else "listening loss"
    panel = Panel(means, label, low=values.min("seed"), high=values.max("seed"))

    return draw_profile(
        [panel], colours=[_ARMS.get(str(a), SERIES[1]) for a in values["arm"].values]
    )


DRAWINGS = (
    Drawing(
        "Thick: the mean over seeds; thin: each seed. Both arms see the same batches from the same "
        "initial weights.",
        _paint_curves,
    ),
    Drawing(
        "How the gradients of both losses agree while training with branches. Above zero they pull "
        "the same way.",
        _paint_cosines,
    ),
    Drawing("The same, layer by layer; a bar spans the seeds.", _paint_layers),
    Drawing(
        "What linear heads that send nothing back can read at each attachment point after "
        "training; a bar spans the seeds.",
        _paint_listening,
    ),
)
