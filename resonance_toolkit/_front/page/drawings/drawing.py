from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xarray as xr

from resonance_toolkit._front.page.figure_style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LETTERS_THAT_LIE_FLAT = 45
_INCHES_OF_A_LETTER = 0.05  # of height, slanted


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
    figure = new_figure(height=height + _height_of_names(result))
    plot(result, ax=figure.add_subplot(), **settings)
    return figure


def _height_of_names(result: xr.Dataset) -> float:
    """Give the inches below an axis of layers for names that are too long to lie flat."""
    if "layer" not in result.dims:
        return 0.0
    lengths = [len(str(name)) for name in result["layer"].values]
    return _INCHES_OF_A_LETTER * max(lengths) if sum(lengths) > _LETTERS_THAT_LIE_FLAT else 0.0


def average_but(result: xr.Dataset, *dims: str) -> xr.Dataset:
    """Average numbers over every dimension but these."""
    numbers = result[[name for name, v in result.data_vars.items() if v.dtype.kind in "fiu"]]
    other_dims = [dim for dim in numbers.dims if dim not in dims]
    return numbers.mean(other_dims, keep_attrs=True) if other_dims else result
