from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from resonance_toolkit import (
    Title,
    check_choice,
    colors_by_order,
    legend_outside,
    new_axes,
    thin_out,
    write_title,
)

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from probes._exit_analysis.events import Event
    from probes._exit_analysis.token_statistics import Measure

_MOST_NAMED = 12  # layers in the legend; half as many where axes are the user's
_CYCLE = 10  # colours, which the eleventh layer would begin again
_RARE_SHARE = 0.01  # of the tokens: the frequency of a bin with fewer is mostly noise
_VARIABLES = ("frequency", "frequency_se", "mean_confidence", "share", "ece", "auroc")


def plot_reliability(
    reliability: xr.Dataset,
    *,
    measure: Measure = "max softmax",
    event: Event = "correct",
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw how often an event happens against the confidence, one curve per layer.

    On the diagonal, confidence equals frequency; below it, the exit is overconfident. Bars are
    standard errors, and the area of a dot is the share of tokens. Bins with less than 1 % of the
    tokens are pale and not joined to the curve. The legend explains this, and gives for each layer
    the expected calibration error (ECE) and the area under the ROC curve (AUROC).

    Args:
        reliability: Made by `exit_reliability` or `exits`. A dimension `seed` is averaged over.
        measure: Which confidence measure: `"max softmax"`, `"margin"`, `"entropy"`, `"cosine"` or
            `"patience"`.
        event: `"correct"`, `"agrees"` or `"as good"`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw.
        style: For the curves, as `Axes.errorbar` takes it.

    Returns:
        The Axes.

    Raises:
        ValueError: If `reliability` is something else, or has no such measure or event.
    """
    curves = _select_curves(reliability, measure, event)

    # In a figure of its own below the square; beside other axes there is more room at the right.
    side: Literal["right", "bottom"] = "right"
    if ax is None:
        ax = new_axes(figsize=(5.2, 6.2))
        side = "bottom"

    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="confidence is frequency")
    layers = curves["layer"].values
    colours = [f"C{i}" for i in range(len(layers))]
    if len(layers) > _CYCLE:
        colours = colors_by_order(len(layers))
    named = thin_out(len(layers), _MOST_NAMED if side == "bottom" else _MOST_NAMED // 2)
    for i, layer in enumerate(layers):
        _draw_curve(ax, curves.sel(layer=layer), colours[i], style, is_named=i in named)

    ax.set(
        xlabel=f"confidence ({measure}), mean of a bin",
        ylabel=f"share of the bin's tokens: {event}",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
        aspect="equal",
    )
    ax.grid(alpha=0.3)
    handles, _ = ax.get_legend_handles_labels()
    write_title(ax, title, reliability)
    legend_outside(ax, side=side, handles=[*handles, *_legend_of_marks()])
    return ax


def _select_curves(reliability: xr.Dataset, measure: str, event: str) -> xr.Dataset:
    missing_names = [name for name in _VARIABLES if name not in reliability]
    if missing_names:
        raise ValueError(
            "`reliability`: expected a Dataset made by probes.exit_reliability, got none with "
            f"{', '.join(missing_names)}"
        )
    check_choice("measure", measure, [str(name) for name in reliability["measure"].values])
    check_choice("event", event, [str(name) for name in reliability["event"].values])

    curves = reliability[list(_VARIABLES)].sel(measure=measure, event=event)
    return curves.mean("seed") if "seed" in curves.dims else curves


def _draw_curve(
    ax: Axes, curve: xr.Dataset, colour: str, style: dict[str, Any], *, is_named: bool
) -> None:
    confidence = curve["mean_confidence"].values
    frequency = curve["frequency"].values
    error = curve["frequency_se"].values
    share = curve["share"].values

    label = f"{curve['layer'].item()}: ECE {float(curve['ece']):.3f}, "
    label += f"AUROC {float(curve['auroc']):.2f}"
    look: dict[str, Any] = {"color": colour, "linewidth": 1.2} | style
    look["label"] = label if is_named else None
    pale_look = look | {"alpha": 0.25, "linestyle": "", "marker": ".", "label": None}

    # Two curves with gaps, so that rare bins are neither strong nor joined; an empty bin has a
    # share of 0, an undefined measure one of NaN: both count as rare.
    is_rare = ~(share >= _RARE_SHARE)
    ax.errorbar(confidence, np.where(is_rare, np.nan, frequency), error, **look)
    ax.errorbar(confidence, np.where(is_rare, frequency, np.nan), error, **pale_look)
    ax.scatter(confidence, frequency, 300 * np.nan_to_num(share), color=look["color"], alpha=0.4)


def _legend_of_marks() -> list[Line2D]:
    """Explain in grey what the marks of all colours mean."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"color": "0.4", "linestyle": ""}
    rare = f"pale: a bin with less than {_RARE_SHARE:.0%} of all tokens"
    return [
        Line2D([], [], marker="|", markersize=10, label="bar: standard error", **look),
        Line2D([], [], marker="o", alpha=0.4, label="area of a dot: share of all tokens", **look),
        Line2D([], [], marker=".", alpha=0.25, label=rare, **look),
    ]
