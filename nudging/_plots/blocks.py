"""An axis of blocks: how large a figure it needs, and which of their names it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resonance_toolkit import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMES = 30  # along an axis: more would touch each other, even slanted
_MOST_LETTERS = 70  # in one line below axes of the usual width


def new_axes_for_blocks(names: list[str]) -> Axes:
    """Make a figure with room for so many blocks, and for their names."""
    width = max(7.0, 3.0 + 0.3 * min(len(names), _MOST_NAMES))
    height_of_names = 0.06 * max(map(len, names)) if _are_slanted(names) else 0.0
    return new_axes(figsize=(width, 4.0 + height_of_names))


def label_blocks(ax: Axes, names: list[str]) -> None:
    """Write names along the x axis, slanted if they are long, and not all if they are many."""
    shown = thin_out(len(names), _MOST_NAMES)
    style: dict[str, Any] = {}
    if _are_slanted(names):
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}

    ax.set_xticks(shown, [names[index] for index in shown], **style)
    ax.set_xlim(-0.6, len(names) - 0.4)


def thin_out(count: int, most: int) -> list[int]:
    """Return indices at equal distances, from the first on, no more than `most`."""
    distance = -(-count // most)  # rounded up
    return list(range(0, count, distance))


def _are_slanted(names: list[str]) -> bool:
    return sum(map(len, names)) > _MOST_LETTERS
