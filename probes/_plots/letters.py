"""A text letter by letter, with the exit that each took: what the pictures of it share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

# Red, green and blue from the first layer over the middle to the last: warm to pale, all of them
# light enough for black and red letters.
_EARLY = (255, 190, 80)
_MIDDLE = (165, 212, 160)
_LATE = (238, 242, 248)

# Letters that take no room get a sign; a dollar would begin a formula in matplotlib.
_SIGNS = str.maketrans({"\n": "\u21b5", "\t": "\u2192", "\r": "\u21b5", "$": r"\$"})


@dataclass(frozen=True)
class Letters:
    """One entry per letter; a token of several letters lends them all its exit."""

    letters: list[str]
    exits: NDArray[np.int64]  # the number of the letter's label
    is_wrong: NDArray[np.bool_]
    token: NDArray[np.int64]
    labels: list[str]
    colours: list[str]  # of the labels: the earlier, the stronger
    has_truth: bool  # whether right and wrong were given


def spread_over_letters(exits: xr.Dataset, text: Sequence[str]) -> Letters:
    """Spread what is known of tokens over their letters.

    Raises:
        ValueError: If the Dataset is none of one sequence, or `text` does not fit it.
    """
    depth, layer_names = _depths_and_names(exits)
    tokens = list(text)
    if len(tokens) != len(depth):
        raise ValueError(f"`text`: expected {len(depth)} strings, got {len(tokens)}")

    # Only exits that were taken get a label.
    taken_depths = np.unique(depth)
    deepest = max(len(layer_names) - 1, 1)
    correct = exits["correct"].values if "correct" in exits else np.full(len(depth), np.nan)

    letters_per_token = [len(token) for token in tokens]
    return Letters(
        letters=[letter.translate(_SIGNS) for token in tokens for letter in token],
        exits=np.repeat(np.searchsorted(taken_depths, depth), letters_per_token),
        is_wrong=np.repeat(correct == 0, letters_per_token),
        token=np.repeat(np.arange(len(tokens)), letters_per_token),
        labels=[f"after {layer_names[d]}" for d in taken_depths],
        colours=[_layer_colour(d / deepest) for d in taken_depths],
        has_truth=bool(np.isfinite(correct).any()),
    )


def _depths_and_names(exits: xr.Dataset) -> tuple[NDArray[np.int64], list[str]]:
    """Return where each token left, and a name for every depth, from either kind of Dataset."""
    variable = "left_at" if "left_at" in exits else "depth"
    if variable not in exits.data_vars or exits[variable].ndim != 1:
        sizes = dict(exits[variable].sizes) if variable in exits.data_vars else "none of them"
        raise ValueError(
            "`exits`: expected `left_at` of exit_map or `depth` of generate for one sequence, such "
            f"as .isel(sample=0), got {sizes}"
        )

    depth = exits[variable].values.astype(int)
    if variable == "left_at":
        return depth, [str(layer) for layer in exits["layer"].values]
    deepest = depth.max(initial=0)
    return depth, [f"{n} layer{'s' if n > 1 else ''}" for n in range(deepest + 1)]


def _layer_colour(place: float) -> str:
    """Return the colour of a layer, the first being at 0 and the last at 1, as `#rrggbb`."""
    if place < 0.5:
        start, end, share = _EARLY, _MIDDLE, 2 * place
    else:
        start, end, share = _MIDDLE, _LATE, 2 * place - 1
    channels = [round(a + share * (b - a)) for a, b in zip(start, end, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in channels)
