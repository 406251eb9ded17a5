"""How all pictures of the front door look: their sizes, letters and colours.

The page replaces each of these colours by one of its own, so that a picture follows the reader's
light or dark theme; see `svg`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1b1f24"
MUTED = "#5f6875"
RULE = "#d3d8df"
PAPER = "#ffffff"

# Told apart by lightness as well as by hue; each reads on white, and has a twin for dark.
SERIES = ("#0b6e69", "#b4541a", "#4b5fb8", "#9c3768", "#6b7280", "#857300")

# Inches: as wide as the text of the page.
WIDTH = 5.8


@contextmanager
def page_style() -> Iterator[None]:
    """Run the body with the letters and colours of the page."""
    import matplotlib as mpl

    with mpl.rc_context(_style_settings()):
        yield


def new_figure(width: float = WIDTH, height: float = 3.4) -> Figure:
    """Make an empty figure that no window waits for."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _style_settings() -> Any:
    from cycler import cycler

    return {
        "axes.axisbelow": True,
        "axes.edgecolor": MUTED,
        "axes.facecolor": "none",
        "axes.grid": False,
        "axes.labelcolor": INK,
        "axes.labelsize": 10,
        "axes.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=SERIES),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlelocation": "left",
        "axes.titlesize": 10.5,
        "axes.titleweight": "regular",
        "figure.facecolor": "none",
        "font.size": 10,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "axes.formatter.useoffset": False,
        "legend.borderpad": 0.3,
        "legend.edgecolor": "none",
        "legend.facecolor": PAPER,
        "legend.fontsize": 9.5,
        "legend.framealpha": 0.85,
        "legend.labelcolor": INK,
        "lines.linewidth": 1.8,
        "savefig.facecolor": "none",
        "text.color": INK,
        "xtick.color": MUTED,
        "xtick.labelcolor": INK,
        "xtick.labelsize": 9.5,
        "ytick.color": MUTED,
        "ytick.labelcolor": INK,
        "ytick.labelsize": 9.5,
    }
