from __future__ import annotations

from typing import TYPE_CHECKING

import xarray as xr

from resonance_toolkit._front.page.drawings.choose import draw_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(dataset: xr.Dataset) -> Figure | None:
    """Draw a result of any verb of the toolkit, by what made it.

    The verb's own plot if there is one; otherwise what was measured layer by layer, or along the
    result's axis, averaged over the others. Opens no window and sets no global style.

    Args:
        dataset: A result, also one read from a file; joined results work where its plot takes them.

    Returns:
        A figure, to save by `savefig`; None if the result has nothing to draw.

    Raises:
        TypeError: If it is not a Dataset.

    Examples:
        >>> norms = {"gradient_norm": ("layer", [1.0, 2.0])}
        >>> figure = draw(xr.Dataset(norms, {"layer": ["stem", "head"]}))
        >>> figure.axes[0].get_lines()[0].get_xdata()
        array([1., 2.])
        >>> draw(xr.Dataset()) is None
        True
    """
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(f"`dataset`: expected an xarray.Dataset, got {type(dataset).__name__}")

    pictures = draw_all(dataset)
    return pictures[0][1] if pictures else None
