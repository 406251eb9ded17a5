from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import (
    Title,
    colors_by_order,
    label_places,
    legend_outside,
    thin_out,
    write_figure_title,
)

_CYCLE = 10  # colours, which the eleventh curve would begin again


def plot_statistics(
    statistics: xr.Dataset,
    *,
    names: Sequence[str] = ("entropy", "coverage", "peak", "gini"),
    x: str = "step",
    hue: str | None = None,
    title: Title = False,
    axes: NDArray[Any] | None = None,
    **style: Any,
) -> NDArray[Any]:
    """Draw statistics of attention along training, or along the layers, one panel each.

    Args:
        statistics: From `attention.capture` or `attention.statistics`, concatenated over `x`.
            Averaged over every dimension but `x` and `hue`.
        names: Which variables.
        x: The dimension along the horizontal axis: "step", or "layer".
        hue: The dimension that tells the curves of a panel apart, such as plain and asymmetric
            training.
        title: Above the figure: a text, or True for what the attributes say.
        axes: As many as names; in any shape.
        style: For every curve.

    Returns:
        The Axes, in the shape of `axes`, or in two columns.

    Raises:
        ValueError: If a name or a dimension is missing, or there are too few `axes`.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> trace = xr.Dataset({"entropy": ("step", [4.0, 3.0])}, coords={"step": [0, 10]})
        >>> axes = plot_statistics(trace, names=["entropy"])
        >>> axes.flat[0].get_lines()[0].get_ydata()
        array([4., 3.])
    """
    _check_variables(statistics, names, [dim for dim in (x, hue) if dim is not None])
    is_own_figure = axes is None
    if axes is None:
        import matplotlib.pyplot as plt

        # Names of layers stand at an angle, and need more room below.
        row_height = 3.8 if x == "layer" else 3
        n_columns = min(2, len(names))
        n_rows = -(-len(names) // n_columns)
        _, axes = plt.subplots(
            n_rows,
            n_columns,
            figsize=(4.2 * n_columns, row_height * n_rows),
            squeeze=False,
            layout="constrained",
        )
    if axes.size < len(names):
        raise ValueError(f"`axes`: expected {len(names)}, got {axes.size}")

    for ax, name in zip(axes.flat, names, strict=False):
        variable = statistics[name]
        averaged_dims = [dim for dim in variable.dims if dim not in (x, hue)]
        curve = variable.mean(averaged_dims, keep_attrs=True)
        settings: dict[str, Any] = {"marker": "o", "markersize": 3} | style
        if hue is not None and curve.sizes[hue] > _CYCLE:
            ax.set_prop_cycle(color=colors_by_order(curve.sizes[hue]))
        lines = curve.plot.line(x=x, hue=hue, ax=ax, add_legend=False, **settings)

        ax.set_title("")
        ax.set_xlabel(str(statistics[x].attrs.get("long_name", x)))

    if hue is not None:
        # The last panel of the first row has room beside it.
        legend_ax = axes.flat[min(len(names), axes.shape[-1]) - 1]
        _add_legend(legend_ax, lines, statistics[hue], is_own_figure=is_own_figure)
    if x == "layer":
        for ax in axes.flat[: len(names)]:
            label_places(ax, [str(layer) for layer in statistics["layer"].values])
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    write_figure_title(list(axes.flat), title, statistics)
    return np.asarray(axes)


def _add_legend(ax: Any, lines: Sequence[Any], hue: xr.DataArray, *, is_own_figure: bool) -> None:
    # One for all panels, where it hides no curve. Of very many curves some are named.
    named = thin_out(len(lines))
    names = [str(hue.values[index]) for index in named]
    lines = [lines[index] for index in named]
    title = str(hue.attrs.get("long_name", hue.name))
    if is_own_figure:
        ax.figure.legend(lines, names, title=title, loc="outside upper center", ncols=4)
    else:
        legend_outside(ax, handles=lines, labels=names, title=title, title_fontsize="small")


def _check_variables(statistics: xr.Dataset, names: Sequence[str], dims: list[str]) -> None:
    if not names:
        raise ValueError("`names`: expected at least one, got none")

    for name in names:
        if name not in statistics:
            available = ", ".join(map(str, statistics.data_vars))
            raise ValueError(f"`names`: expected some of {available}; got {name!r}")

        missing_dims = [dim for dim in dims if dim not in statistics[name].dims]
        if missing_dims:
            available = ", ".join(map(str, statistics[name].dims)) or "none"
            raise ValueError(
                f"`x` and `hue`: expected dimensions of {name!r}, {available}; got {dims}"
            )
