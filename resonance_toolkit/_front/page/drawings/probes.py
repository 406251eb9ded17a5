"""Pictures of `probes`: branches, exits, similarity of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from resonance_toolkit import probes
from resonance_toolkit._front.page.drawings.drawing import Drawing, paint_alone
from resonance_toolkit._front.page.figure_style import new_figure
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _paint_branches(result: xr.Dataset) -> Figure:
    """Draw the mean over branches with their range, for the loss and what goes with it."""
    panels = []
    for name in ("accuracy", "loss"):
        if name in result and result[name].notnull().any():
            values = result[name]
            other_dims = [dim for dim in values.dims if dim != "layer"]
            label = str(values.attrs.get("long_name", name))

            panel = Panel(
                values.mean(other_dims) if other_dims else values,
                label,
                low=values.min(other_dims) if other_dims else None,
                high=values.max(other_dims) if other_dims else None,
            )
            panels.append(panel)

    if not panels:
        raise ValueError("no loss and no accuracy over layers")

    return draw_profile(panels)


def _paint_reliability(result: xr.Dataset) -> Figure:
    return paint_alone(probes.plot_reliability, result, height=6.0)


def _paint_calibration(result: xr.Dataset) -> Figure:
    names = [
        str(name)
        for name, values in result.data_vars.items()
        if values.dims == ("layer",) and values.dtype.kind == "f"
    ]
    panels = [
        Panel(result[name], str(result[name].attrs.get("long_name", name))) for name in names[:3]
    ]
    if not panels:
        raise ValueError("nothing over layers")

    return draw_profile(panels)


def _paint_tokens(result: xr.Dataset) -> Figure:
    exits = [str(name) for name in result["layer"].values]
    # Exits in the order of the model, also those that no token left at.
    counts = np.bincount(result["left_at"].values.ravel().astype(int), minlength=len(exits))
    shares = xr.DataArray(counts / counts.sum(), {"layer": ("layer", exits[: len(counts)])})
    figure = new_figure(height=1.2 + 0.3 * len(exits))
    ax = figure.add_subplot()
    ax.barh(range(len(exits)), shares.values, height=0.6)
    ax.set_yticks(range(len(exits)), exits)
    ax.invert_yaxis()
    ax.set_xlabel("share of tokens that left here")
    return figure


_BRANCHES = Drawing(
    "The branches at each layer: their mean, and a bar from the worst branch to the best.",
    _paint_branches,
)
_TRADEOFF = Drawing(
    "Perplexity against the share of computing that is left. Where the routed curve is not below "
    "the dashed one, confidence chooses no better than chance.",
    lambda result: paint_alone(probes.plot_tradeoff, result, height=4.2),
)
_RELIABILITY = Drawing(
    "How often a prediction is right against how sure the exit was; on the diagonal, confidence "
    "is the frequency.",
    _paint_reliability,
)
_LEFT_AT = Drawing("How many tokens left at which layer.", _paint_tokens)

DRAWINGS = {
    "probes.Probe.measure": (_BRANCHES,),
    "probes.Probe.evaluate": (_BRANCHES,),
    "probes.Probe.fit": (_BRANCHES,),
    "probes.Exits.measure": (_BRANCHES,),
    "probes.exits": (_TRADEOFF, _RELIABILITY),
    "probes.route_exits": (_TRADEOFF,),
    "probes.exit_reliability": (_RELIABILITY,),
    "probes.calibrate_exits": (
        Drawing("What calibration has changed, exit by exit.", _paint_calibration),
    ),
    "probes.exit_map": (_LEFT_AT,),
    "probes.generate": (_LEFT_AT,),
    "probes.similarity": (
        Drawing(
            "How alike two layers represent the same samples: 1 is the same up to rotation, 0 "
            "unrelated.",
            lambda result: paint_alone(probes.plot_similarity, result, height=5.2),
        ),
    ),
}
