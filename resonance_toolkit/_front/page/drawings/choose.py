"""Which pictures a result has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import xarray as xr

from resonance_toolkit._front.page.drawings import (
    attention,
    gradients,
    landscapes,
    monitor,
    nudging,
    probes,
    response,
)
from resonance_toolkit._front.page.drawings.anything import ANYTHING
from resonance_toolkit._front.page.drawings.drawing import Drawing
from resonance_toolkit._front.page.figure_style import page_style
from resonance_toolkit._front.page.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWINGS = (
    attention.DRAWINGS
    | gradients.DRAWINGS
    | landscapes.DRAWINGS
    | monitor.DRAWINGS
    | nudging.DRAWINGS
    | probes.DRAWINGS
)

# What a plot raises where the result lacks what it draws: joined or cut by the user, say.
_LACKING = (ValueError, KeyError, TypeError, IndexError)


def draw_all(dataset: xr.Dataset) -> list[tuple[str, Figure]]:
    """Draw every picture that a result has.

    Returns:
        Pairs of caption and figure; none if there is nothing to draw.
    """
    result = printable(dataset)
    verb = str(dataset.attrs.get("made_by", ""))
    pictures = []

    with page_style():
        # What one picture lacks, another may have.
        for drawing in _drawings_of(result, verb):
            try:
                pictures.append((drawing.caption, _keep_colours(drawing.paint(result))))
            except _LACKING:
                continue

        if not pictures:
            try:
                pictures.append((ANYTHING.caption, _keep_colours(ANYTHING.paint(result))))
            except _LACKING:
                return []

    return pictures


def _drawings_of(result: xr.Dataset, verb: str) -> Sequence[Drawing]:
    if response.is_response(result):
        return response.DRAWINGS
    return _DRAWINGS.get(verb, ())


def _keep_colours(figure: Figure) -> Figure:
    """Make colours such as "C0" those of the page, in whatever style the figure is saved."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    for line in figure.findobj(Line2D):
        assert isinstance(line, Line2D)
        line.set_color(to_hex(line.get_color()))

        for get_color, set_color in (
            (line.get_markerfacecolor, line.set_markerfacecolor),
            (line.get_markeredgecolor, line.set_markeredgecolor),
        ):
            if str(get_color()).startswith("C"):
                set_color(to_hex(get_color()))

    return figure
