"""Pictures of what `resonance.Monitor` saw: each part along training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from resonance_toolkit import gradients
from resonance_toolkit._front.page.drawings.drawing import Drawing, average_but, paint_alone
from resonance_toolkit._front.page.figure_style import SERIES, WIDTH, new_figure
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BRANCHES = {"accuracy": "accuracy", "loss": "loss before alpha", "weight": "weight"}
_ATTENTION = {"normalised_entropy": "entropy / uniform", "gini": "Gini"}

_ROW = 0.2  # inches from one layer to the next
_MOST_NAMES = 40


def _paint_trace(result: xr.Dataset) -> Figure:
    return paint_alone(gradients.plot_trace, result, height=3.6)


def _paint_cosines(result: xr.Dataset) -> Figure:
    averaged = average_but(result, "step", "layer")
    height = max(3.4, 1.3 + min(_ROW * averaged.sizes["layer"], 9.0))
    return paint_alone(gradients.plot_layers, averaged, height=height)


def _paint_branches(result: xr.Dataset) -> Figure:
    if "accuracy" not in result and "weight" not in result:
        raise ValueError("no branches and no exits")
    return _paint_by_layer(result, _BRANCHES)


def _paint_attention(result: xr.Dataset) -> Figure:
    return _paint_by_layer(result, _ATTENTION)


def _paint_by_layer(result: xr.Dataset, labels: Mapping[str, str]) -> Figure:
    """Draw maps of layers and steps, side by side; of a single step the values themselves."""
    names = [name for name in labels if name in result and bool(result[name].notnull().any())]
    if not names:
        raise ValueError("nothing over layers")

    averaged = average_but(result, "step", "layer")
    if averaged.sizes["step"] == 1:
        only = averaged.isel(step=0)
        return draw_profile([Panel(only[name], labels[name]) for name in names])

    n_layers = averaged.sizes["layer"]
    figure = new_figure(WIDTH, 1.9 + min(_ROW * n_layers, 9.0))
    axes: Any = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for ax, name in zip(axes, names, strict=True):
        _draw_map(ax, averaged[name].transpose("layer", "step"), labels[name])

    layers = [str(layer) or "(the model itself)" for layer in averaged["layer"].values]
    stride = -(-n_layers // _MOST_NAMES)
    axes[0].set_yticks(range(0, n_layers, stride), layers[::stride], fontsize=8.5)
    axes[0].invert_yaxis()  # the first layer on top
    return figure


def _draw_map(ax: Axes, values: xr.DataArray, label: str) -> None:
    rows = np.arange(values.sizes["layer"])
    ax.set_facecolor("0.85")
    mesh = ax.pcolormesh(
        values["step"].values,
        rows,
        np.ma.masked_invalid(values.values),
        shading="nearest",
        cmap="viridis",
    )
    ax.set_xlabel("optimizer updates")
    ax.locator_params(axis="x", nbins=4, integer=True)
    bar = ax.figure.colorbar(mesh, ax=ax, label=label, location="top")
    bar.ax.locator_params(nbins=4)


def _paint_sharpness(result: xr.Dataset) -> Figure:
    sharpness = result["critical_sharpness"].transpose("step", "objective", "other_objective")
    finite = sharpness.where(np.isfinite(sharpness))
    if not bool(finite.notnull().any()):
        raise ValueError("no sharpness is defined")

    figure = new_figure(WIDTH, 3.0)
    ax = figure.add_subplot()
    pairs = [
        (update, loss)
        for update in result["objective"].values
        for loss in result["other_objective"].values
    ]
    for index, (update, loss) in enumerate(pairs):
        curve = finite.sel(objective=update, other_objective=loss).dropna("step")
        label = f"{loss} loss, {update} update"
        ax.plot(
            curve["step"].values, curve.values, marker=".", color=SERIES[index % 6], label=label
        )

    ax.set_xlabel("optimizer updates")
    ax.set_ylabel("critical sharpness")
    if bool((finite > 0).all()) and float(finite.max()) > 30 * float(finite.min()):
        ax.set_yscale("log")
    if len(pairs) > 1:
        figure.legend(loc="outside upper left", ncols=2)
    return figure


DRAWINGS = {
    "resonance.Monitor": (
        Drawing("The cosine of the two gradients over all shared places.", _paint_trace),
        Drawing(
            "The same for each layer and step: blue where both losses pull one way, red where "
            "they pull against each other, grey where one of them does not reach the layer.",
            _paint_cosines,
        ),
        Drawing(
            "The branches at each layer along training, averaged over the branches of a layer.",
            _paint_branches,
        ),
        Drawing(
            "How widely attention is spread along training, averaged over heads and samples. "
            "Uniform attention has an entropy of 1 (relative to the largest possible) and a Gini "
            "index of 0.",
            _paint_attention,
        ),
        Drawing(
            "Critical sharpness: 2 over the smallest step at which a loss is no lower than before. "
            "The higher it is, the smaller the steps along an update that do not raise the loss.",
            _paint_sharpness,
        ),
    ),
}
