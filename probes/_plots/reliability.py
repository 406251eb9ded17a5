from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

_RARE = 0.01  # of the tokens
_WANTED = ("frequency", "frequency_se", "mean_confidence", "share", "ece", "auroc")


def plot_reliability(
    reliability: xr.Dataset,
    *,
    measure: str = "max softmax",
    event: str = "correct",
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw how often an event happens against the confidence, one curve per layer.

    On the diagonal confidence is the frequency; below it the exit is too sure of itself. Bars are
    standard errors, the area of a dot is the share of tokens; bins with less than 1 % of them are
    pale and not joined to the curve. The legend says so, and has for each layer the expected
    calibration error (ECE) and the area under the ROC curve (AUROC).

    Args:
        reliability: Made by `exit_reliability` or `exits`. A dimension `seed` is averaged over.
        measure: Which confidence measure.
        event: `"correct"`, `"agrees"` or `"as good"`.
        ax: Where to draw.
        style: For the curves, as `Axes.errorbar` takes it.

    Returns:
        The Axes.

    Raises:
        ValueError: If `reliability` is something else, or has no such measure or event.
    """
    missing = [name for name in _WANTED if name not in reliability]
    if missing:
        raise ValueError(
            "`reliability`: expected a Dataset made by probes.exit_reliability, got none with "
            f"{', '.join(missing)}"
        )
    for name, value in (("measure", measure), ("event", event)):
        known = [str(v) for v in reliability[name].values]
        if value not in known:
            raise ValueError(f"`{name}`: expected one of {', '.join(known)}, got {value!r}")
    part = reliability[list(_WANTED)].sel(measure=measure, event=event)
    part = part.mean("seed") if "seed" in part.dims else part
    place: dict[str, Any] = {"loc": "best"}
    if ax is None:
        import matplotlib.pyplot as plt  # here, so that computing needs no matplotlib

        _, ax = plt.subplots(figsize=(5.2, 6.2), layout="constrained")
        # Below, so that it hides nothing; beside other axes there may be no room.
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "frameon": False}
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="confidence is frequency")
    for i, layer in enumerate(part["layer"].values):
        row = part.sel(layer=layer)
        x, y, share = (row[name].values for name in ("mean_confidence", "frequency", "share"))
        label = f"{layer}: ECE {float(row['ece']):.3f}, AUROC {float(row['auroc']):.2f}"
        look: dict[str, Any] = {"color": f"C{i}", "linewidth": 1.2, "label": label} | style
        rare = ~(share >= _RARE)
        for pale in (False, True):
            shown = np.where(rare == pale, y, np.nan)
            faint = {"alpha": 0.25, "linestyle": "", "marker": ".", "label": None} if pale else {}
            ax.errorbar(x, shown, row["frequency_se"].values, **look | faint)
        ax.scatter(x, y, 300 * np.nan_to_num(share), color=look["color"], alpha=0.4)
    ax.set(
        xlabel=f"confidence ({measure}), mean of a bin",
        ylabel=f"share of the bin's tokens: {event}",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
        aspect="equal",
    )
    ax.grid(alpha=0.3)
    handles, _ = ax.get_legend_handles_labels()
    ax.legend(handles=[*handles, *_in_grey()], fontsize="small", **place)
    return ax


def _in_grey() -> list[Line2D]:
    """What the marks of all colours mean, for the legend."""
    look: dict[str, Any] = {"color": "0.4", "linestyle": ""}
    rare = f"pale: a bin with less than {_RARE:.0%} of all tokens"
    return [
        Line2D([], [], marker="|", markersize=10, label="bar: standard error", **look),
        Line2D([], [], marker="o", alpha=0.4, label="area of a dot: share of all tokens", **look),
        Line2D([], [], marker=".", alpha=0.25, label=rare, **look),
    ]
