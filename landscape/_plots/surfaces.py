from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

from landscape._plots.surface import plot_surface
from landscape._plots.values import check_plane, finite_values, value_limits
from resonance_toolkit import Title, write_figure_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_surfaces(
    surfaces: Mapping[str, xr.Dataset],
    *,
    variable: str = "loss",
    title: Title = False,
    figure: Figure | None = None,
    **style: Any,
) -> list[Axes]:
    """Draw several surfaces side by side on one scale of height and colour, as figure 5 does.

    Args:
        surfaces: Results of `grid` by title.
        variable: What to draw.
        title: Above all: a text, or True for what the attributes of the first surface say.
        figure: Where to draw; a new one by default.
        style: Passed on to `plot_surface`.

    Returns:
        The axes, one for each surface.

    Raises:
        ValueError: If there is no surface, or one has no such variable.
    """
    if not surfaces:
        raise ValueError("`surfaces`: expected one or more, got none")
    limits = value_limits(
        *(finite_values(check_plane(surface, variable)) for surface in surfaces.values())
    )

    if figure is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=(4.2 * len(surfaces), 4.2), layout="constrained")

    axes = []
    for number, (name, surface) in enumerate(surfaces.items(), start=1):
        ax: Any = figure.add_subplot(1, len(surfaces), number, projection="3d")
        plot_surface(surface, variable=variable, limits=limits, ax=ax, **style)
        ax.set_title(name)
        ax.set_zlabel("")  # the colour bar says it
        axes.append(ax)

    scale: Any = axes[0].collections[0]
    label = next(iter(surfaces.values()))[variable].attrs.get("long_name", variable)
    bar: Any = figure.colorbar(scale, ax=axes, shrink=0.6, pad=0.08, label=label)
    bar.formatter.set_useOffset(False)
    write_figure_title(axes, title, next(iter(surfaces.values())))
    return axes
