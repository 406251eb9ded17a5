"""Pictures of `nudging`: what a credit does to the loss, and how it points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from resonance_toolkit import nudging
from resonance_toolkit._front.page.drawings.drawing import Drawing, average_but, paint_alone
from resonance_toolkit._front.page.profile import Panel, draw_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_rule(result: xr.Dataset) -> xr.Dataset:
    """Give the dimension of credits the name that plots know, and keep one step length."""
    if "credit" in result.dims:
        result = result.rename(credit="rule")
    return result.isel(eta=0) if "eta" in result.dims else result


def _paint_nudge(result: xr.Dataset) -> Figure:
    averaged = average_but(by_rule(result), "layer", "rule", "seed")
    return paint_alone(nudging.plot_nudge, averaged)


def _paint_alignment(result: xr.Dataset) -> Figure:
    times: list[Any] = [dim for dim in ("step", "epoch") if dim in result.dims]
    kept_dims = times[:1] or ["rule"]
    averaged = average_but(by_rule(result), "layer", "seed", *kept_dims)
    if averaged["cosine"].isnull().all():
        raise ValueError("no cosine")
    return paint_alone(nudging.plot_alignment, averaged, height=3.5)


def _paint_column(name: str, label: str) -> Any:
    def paint(result: xr.Dataset) -> Figure:
        return draw_profile([Panel(average_but(by_rule(result), "layer", "rule")[name], label)])

    return paint


_NUDGE = Drawing(
    "What a small step against each credit does to the loss, block by block: below zero it helps. "
    "A dash, or a dotted line, is the change expected to first order.",
    _paint_nudge,
)
_ALIGNMENT = Drawing(
    "The cosine of the credit with the gradient of the loss: 1 for backprop, about 0 for a random "
    "direction.",
    _paint_alignment,
)

DRAWINGS = {
    "nudging.nudge": (_NUDGE,),
    "nudging.alignment": (_ALIGNMENT,),
    "nudging.measure": (_NUDGE, _ALIGNMENT),
    "nudging.correlation": (
        Drawing(
            "How well the credit predicts the changes of the loss, block by block.",
            _paint_column("correlation", "correlation of predicted and true changes"),
        ),
    ),
    "nudging.stability": (
        Drawing(
            "How alike the gradients of different batches are, block by block.",
            _paint_column("stability", "stability of the gradient"),
        ),
    ),
    "nudging.drift": (
        Drawing(
            "How far the weights of each layer have moved, relative to where they began.",
            _paint_column("drift", "relative change of the weights"),
        ),
    ),
    "nudging.audit": (
        Drawing(
            "The checks of the audit: how far each value is from the threshold where its check "
            "fires. Marks in the shaded part have fired.",
            lambda result: paint_alone(nudging.plot_audit, result, height=3.6),
        ),
    ),
}
