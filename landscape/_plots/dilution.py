from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resonance_toolkit import Title, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

# What dilution alone multiplies lengths by, for each way to normalise that dilutes.
_FACTORS = {
    "unit": ("factor", "share of the parameters"),
    "tensor": ("factor_by_tensor", "share of the tensors"),
}
_WRITTEN = {
    "std": "standard\ndeviation",
    "range": "range",
    "mean_grad": "mean\ngradient",
    "mean_grad_per_step": "mean gradient\nper grid step",
}


def plot_dilution(
    dilution: xr.Dataset, *, title: Title = False, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw how much smoother a surface looks when its directions cover extra weights as well.

    Bars are the statistics of the surface over backbone and extra, divided by those of the backbone
    alone; 1 means no change. The dashed line is the factor by which dilution alone shortens the
    direction on the backbone. Dilution explains bars that are near it or near its square.

    Args:
        dilution: Of `landscape.dilution`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: For `Axes.bar`.

    Returns:
        The Axes.

    Raises:
        ValueError: If `dilution` is something else.
    """
    missing = [name for name in ("change", "factor", "factor_by_tensor") if name not in dilution]
    if missing or dilution["change"].dims != ("statistic",):
        raise ValueError(
            "`dilution`: expected a result of landscape.dilution, got one with "
            f"{', '.join(map(str, dilution.data_vars)) or 'no variable'}"
        )
    if ax is None:
        ax = new_axes(figsize=(7.2, 3.6))

    ratios = 1 + dilution["change"].values
    names = [str(name) for name in dilution["statistic"].values]
    places = np.arange(len(names))
    look: dict[str, Any] = {"color": "C0", "alpha": 0.75, "width": 0.6} | style
    ax.bar(places, ratios, **look)
    for place, ratio in zip(places, ratios, strict=True):
        text = f"{ratio:.2f}" if np.isfinite(ratio) else "flat"
        height = ratio if np.isfinite(ratio) else 0.0
        ax.annotate(
            text,
            (place, height),
            (0, 3),
            textcoords="offset points",
            ha="center",
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
        )

    ax.axhline(1, color="black", linewidth=1, label="no change")
    normalisation = str(dilution.attrs.get("normalisation", ""))
    if normalisation in _FACTORS:
        variable, share = _FACTORS[normalisation]
        factor = float(dilution[variable])
        label = f"dilution alone: {factor:.2f}, root of the backbone's\n{share}"
        ax.axhline(factor, color="C3", linestyle="--", linewidth=1.5, label=label)
        label = f"its square: {factor**2:.2f}"
        ax.axhline(factor**2, color="C3", linestyle=":", linewidth=1.2, label=label)

    ax.set_xticks(places, [_WRITTEN.get(name, name) for name in names])
    ax.set_ylabel("backbone + extra, relative to backbone")
    ax.margins(y=0.12)
    write_title(ax, title, dilution)
    legend_outside(ax, side="bottom", ncols=3)
    return ax
