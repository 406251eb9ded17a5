from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xarray as xr

from resonance_toolkit._front.page.figure_style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """One way to draw a result.

    Args:
        caption: What is to be seen, in a sentence or two.
        paint: Makes the figure; raises a ValueError or KeyError where the result lacks something.
    """

    caption: str
    paint: Callable[[xr.Dataset], Figure]


def paint_alone(
    plot: Callable[..., Any], result: xr.Dataset, *, height: float = 3.4, **settings: Any
) -> Figure:
    """Let a plot function of an instrument draw into a figure of the front door's size."""
    figure = new_figure(height=height)
    plot(result, ax=figure.add_subplot(), **settings)
    return figure


def average_but(result: xr.Dataset, *dims: str) -> xr.Dataset:
    """Average numbers over every dimension but these."""
    others = [dim for dim in result.dims if dim not in dims]
    numeric = [name for name, values in result.data_vars.items() if values.dtype.kind in "fiu"]
    return result[numeric].mean(others, keep_attrs=True) if others else result
