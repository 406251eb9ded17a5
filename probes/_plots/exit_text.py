from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from probes._plots.letters import spread_over_letters
from resonance_toolkit import Title, new_axes, title_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

    from probes._plots.letters import Letters

_WRONG_COLOUR = "#c00000"
_LEGEND_HEIGHT = 24  # points, between the text and a title


def plot_exit_text(
    exits: xr.Dataset,
    text: Sequence[str],
    *,
    width: int = 80,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Write a text on the colours of the exits that its tokens took; wrong ones in red.

    Args:
        exits: One sequence: a sample of `probes.generate`, or some tokens of an exit map.
        text: What is written: one string for each token, such as the characters of the text.
        width: Characters of a line.
        title: A text, or True for one made from the attributes.
        ax: Where to draw.
        style: For every character, as `Axes.text` takes it.

    Returns:
        The Axes. A token whose prediction was wrong is red and underlined, where `exits` knows.

    Raises:
        ValueError: If `exits` is none of these, or `text` has another length.
    """
    from matplotlib.colors import ListedColormap

    letters = spread_over_letters(exits, text)
    n_letters = len(letters.letters)
    if width < 1:
        raise ValueError(f"`width`: expected at least 1, got {width}")

    rows = -(-n_letters // width)
    columns = min(width, n_letters)
    if ax is None:
        # Inches for a letter of 8 points, and room for the legend above.
        ax = new_axes(figsize=(0.115 * columns + 0.4, 0.23 * rows + 0.9))

    # The text in lines of `width`, the last one filled up with nothing.
    board = np.full(rows * width, np.nan)
    board[:n_letters] = letters.exits
    ax.imshow(
        np.ma.masked_invalid(board.reshape(rows, width)),
        cmap=ListedColormap(letters.colours),
        vmin=-0.5,
        vmax=len(letters.colours) - 0.5,
        aspect="auto",
        interpolation="nearest",
    )
    _write_letters(ax, letters, width, style)

    ax.set(xticks=[], yticks=[], xlim=(-0.5, columns - 0.5))
    ax.spines[:].set_visible(False)
    patches = _legend_patches(letters)
    ax.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(patches),
        frameon=False,
        fontsize="small",
    )
    ax.set_title(title_text(title, exits), fontsize="medium", pad=_LEGEND_HEIGHT)
    return ax


def _write_letters(ax: Axes, letters: Letters, width: int, style: dict[str, Any]) -> None:
    look: dict[str, Any] = {"family": "monospace", "fontsize": 8, "ha": "center"} | style

    for i, letter in enumerate(letters.letters):
        row, column = divmod(i, width)
        emphasis = {"color": _WRONG_COLOUR, "weight": "bold"} if letters.is_wrong[i] else {}
        ax.text(column, row, letter, va="center_baseline", **look | emphasis)

        # Underlined as well: a wrong space would not show in red, and some readers see no red.
        if letters.is_wrong[i]:
            line = [column - 0.35, column + 0.35]
            ax.plot(line, [row + 0.42] * 2, color=_WRONG_COLOUR, linewidth=0.8)


def _legend_patches(letters: Letters) -> list[Patch]:
    from matplotlib.patches import Patch

    patches = []
    for i, (colour, label) in enumerate(zip(letters.colours, letters.labels, strict=True)):
        share = np.mean(letters.exits == i)
        patches.append(Patch(color=colour, label=f"{label}: {share:.0%}"))
    if letters.has_truth:
        patches.append(Patch(color=_WRONG_COLOUR, label=f"wrong: {letters.is_wrong.mean():.0%}"))
    return patches
