"""A figure for an axis of blocks, as large as their names need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resonance_toolkit import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BLOCKS = 30  # for which a figure is widened
_MOST_LETTERS = 70  # in one line below axes of the usual width


def new_axes_for_blocks(names: list[str]) -> Axes:
    """Make a figure with room for so many blocks, and for their names."""
    width = max(7.0, 3.0 + 0.3 * min(len(names), _MOST_BLOCKS))
    are_slanted = sum(map(len, names)) > _MOST_LETTERS
    height_of_names = 0.06 * max(map(len, names)) if are_slanted else 0.0
    return new_axes(figsize=(width, 4.0 + height_of_names))
