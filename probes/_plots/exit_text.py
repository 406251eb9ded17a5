from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from probes._plots.letters import letters

WRONG = "#c00000"


def plot_exit_text(
    exits: xr.Dataset,
    text: Sequence[str],
    *,
    width: int = 80,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Write a text on the colours of the exits that its tokens took; wrong ones in red.

    Args:
        exits: One sequence: a sample of `probes.generate`, or some tokens of an exit map.
        text: What is written: one string for each token, such as the characters of the text.
        width: Characters of a line.
        ax: Where to draw.
        style: For every character, as `Axes.text` takes it.

    Returns:
        The Axes. A token whose prediction was wrong is red and underlined, where `exits` knows.

    Raises:
        ValueError: If `exits` is none of these, or `text` has another length.
    """
    found = letters(exits, text)
    if width < 1:
        raise ValueError(f"`width`: expected at least 1, got {width}")
    rows = -(-len(found.letters) // width)
    if ax is None:
        import matplotlib.pyplot as plt  # here, so that computing needs no matplotlib

        size = (0.115 * min(width, len(found.letters)) + 0.4, 0.23 * rows + 0.9)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = found.colours
    board = np.full(rows * width, np.nan)
    board[: len(found.letters)] = found.exits
    ax.imshow(
        np.ma.masked_invalid(board.reshape(rows, width)),
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=len(colours) - 0.5,
        aspect="auto",
        interpolation="nearest",
    )
    settings: dict[str, Any] = {"family": "monospace", "fontsize": 8, "ha": "center"} | style
    for i, letter in enumerate(found.letters):
        row, column = divmod(i, width)
        colour = {"color": WRONG, "weight": "bold"} if found.wrong[i] else {}
        ax.text(column, row, letter, va="center_baseline", **settings | colour)
        if found.wrong[i]:
            ax.plot([column - 0.35, column + 0.35], [row + 0.42] * 2, color=WRONG, linewidth=0.8)
    ax.set(xticks=[], yticks=[], xlim=(-0.5, min(width, len(found.letters)) - 0.5))
    ax.spines[:].set_visible(False)
    shares = [np.mean(found.exits == i) for i in range(len(found.labels))]
    patches = [
        Patch(color=colour, label=f"{label}: {share:.0%}")
        for colour, label, share in zip(colours, found.labels, shares, strict=True)
    ]
    if found.knows:
        patches.append(Patch(color=WRONG, label=f"wrong: {found.wrong.mean():.0%}"))
    ax.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(patches),
        frameon=False,
        fontsize="small",
    )
    return ax
