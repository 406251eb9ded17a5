from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xarray as xr

from resonance_toolkit import Title, legend_outside, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_dynamics(
    traces: Mapping[str, xr.Dataset],
    *,
    title: Title = False,
    axes: Sequence[Axes] | None = None,
    **style: Any,
) -> Sequence[Axes]:
    """Draw losses and gradient norms along training, as one column of figure 7 of the paper.

    Args:
        traces: By label, such as "plain" and "asymmetric", each as made by `Trace`, with one loss
            or two, at the parameter level.
        title: A text, or True for one made from the attributes of the first trace.
        axes: Two of them, for losses and norms; a new figure by default.
        style: Passed on to `Axes.plot`.

    Returns:
        The two axes: main losses as full lines, auxiliary ones dashed; the norm of the whole
        gradient, on a logarithmic scale.

    Raises:
        ValueError: If there is no trace, or one has no gradient norm.
    """
    for label, trace in traces.items():
        if "gradient_norm" not in trace or "loss_main" not in trace:
            raise ValueError(
                f"`traces`: {label!r}: expected `loss_main` and `gradient_norm (step)`"
            )
    if not traces:
        raise ValueError("`traces`: expected at least one, got none")

    if axes is None:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(2, sharex=True, figsize=(6, 6), layout="constrained")
    loss_axes, norm_axes = axes

    for label, trace in traces.items():
        step = trace["step"]
        (line,) = loss_axes.plot(step, trace["loss_main"], label=f"{label}, main", **style)

        # One colour for all that belongs to one trace, unless the style says another.
        same_colour: dict[str, Any] = {"color": line.get_color()} | style
        if "loss_aux" in trace:
            dashed = {"label": f"{label}, auxiliary", "linestyle": "--"} | same_colour
            loss_axes.plot(step, trace["loss_aux"], **dashed)
        norm_axes.plot(step, trace["gradient_norm"], label=label, **same_colour)

    loss_axes.set_ylabel("loss")
    norm_axes.set_ylabel("norm of the whole gradient")
    norm_axes.set_yscale("log")
    norm_axes.set_xlabel("optimizer updates")
    write_title(loss_axes, title, next(iter(traces.values())))
    for ax in (loss_axes, norm_axes):
        legend_outside(ax)
    return [loss_axes, norm_axes]
