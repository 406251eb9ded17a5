"""A picture of a result that no plot is made for: by layer, or along its one axis of numbers."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import xarray as xr

from resonance_toolkit._front.page.drawings.drawing import Drawing, average_but
from resonance_toolkit._front.page.figure_style import WIDTH, new_figure
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PANELS = 3

# Averaged over if there is anything else.
_REPETITIONS = {"seed", "sample", "batch", "head"}


def _paint_anything(result: xr.Dataset) -> Figure:
    columns = [
        name
        for name, values in result.data_vars.items()
        if values.dtype.kind == "f" and values.notnull().any()
    ]
    result = result[columns]
    if "layer" in result.dims and result.sizes["layer"]:
        return _paint_layers(result)

    # Time is the likeliest axis; repetitions are one only where there is nothing else.
    for dim in ("step", "epoch", *result.dims, *_REPETITIONS):
        is_axis = dim in result.dims and result[dim].dtype.kind in "fiu" and result.sizes[dim] > 1
        if is_axis and (dim not in _REPETITIONS or set(result.dims) <= _REPETITIONS):
            return _paint_curves(result, str(dim))

    raise ValueError("nothing over an axis")


def _paint_layers(result: xr.Dataset) -> Figure:
    averaged = average_but(result, "layer")
    columns = [values for values in averaged.data_vars.values() if values.dims == ("layer",)]
    if not columns:
        raise ValueError("nothing over layers")
    return draw_profile([Panel(values, _label(values)) for values in columns[:_MOST_PANELS]])


def _paint_curves(result: xr.Dataset, dim: str) -> Figure:
    averaged = average_but(result, dim)
    columns = [values for values in averaged.data_vars.values() if values.dims == (dim,)]
    if not columns:
        raise ValueError(f"nothing over {dim}")

    columns = columns[:_MOST_PANELS]

    figure = new_figure(WIDTH, 3.0)
    axes = figure.subplots(1, len(columns), squeeze=False)[0]

    for ax, values in zip(axes, columns, strict=True):
        ax.plot(values[dim].values, values.values, marker="." if values.size < 40 else "")
        ax.set_xlabel(textwrap.fill(_label(result[dim]), 28))
        ax.set_ylabel(textwrap.fill(_label(values), 30))
        ax.locator_params(axis="x", nbins=4)

    return figure


def _label(values: xr.DataArray) -> str:
    return str(values.attrs.get("long_name", values.name))


ANYTHING = Drawing("What was measured, averaged over all other axes.", _paint_anything)
