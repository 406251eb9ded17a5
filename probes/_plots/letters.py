"""A text letter by letter, with the exit that each took: what the pictures of it share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

_EARLY, _MIDDLE, _LATE = (255, 190, 80), (165, 212, 160), (238, 242, 248)
_SIGNS = str.maketrans({"\n": "\u21b5", "\t": "\u2192", "\r": "\u21b5", "$": r"\$"})


@dataclass(frozen=True)
class Letters:
    """One entry per letter; a token of several letters lends them all its exit."""

    letters: list[str]
    exits: NDArray[np.int64]  # which label
    wrong: NDArray[np.bool_]
    token: NDArray[np.int64]
    labels: list[str]
    colours: list[str]  # of the labels: the earlier, the stronger
    knows: bool  # whether right and wrong were given


def letters(exits: xr.Dataset, text: Sequence[str]) -> Letters:
    """Spread what is known of tokens over their letters.

    Raises:
        ValueError: If the Dataset is none of one sequence, or `text` does not fit it.
    """
    name = "left_at" if "left_at" in exits else "depth"
    if name not in exits.data_vars or exits[name].ndim != 1:
        got = dict(exits[name].sizes) if name in exits.data_vars else "none of them"
        raise ValueError(
            "`exits`: expected `left_at` of exit_map or `depth` of generate for one sequence, such "
            f"as .isel(sample=0), got {got}"
        )
    depth = exits[name].values.astype(int)
    tokens = list(text)
    if len(tokens) != len(depth):
        raise ValueError(f"`text`: expected {len(depth)} strings, got {len(tokens)}")
    if name == "left_at":
        names = [str(layer) for layer in exits["layer"].values]
    else:
        names = [f"{n} layer{'s' if n > 1 else ''}" for n in range(depth.max(initial=0) + 1)]
    known = np.unique(depth)
    repeats = [len(token) for token in tokens]
    correct = exits["correct"].values if "correct" in exits else np.full(len(depth), np.nan)
    return Letters(
        letters=[letter.translate(_SIGNS) for token in tokens for letter in token],
        exits=np.repeat(np.searchsorted(known, depth), repeats),
        wrong=np.repeat(correct == 0, repeats),
        token=np.repeat(np.arange(len(tokens)), repeats),
        labels=[f"after {names[d]}" for d in known],
        colours=[_colour(d / max(len(names) - 1, 1)) for d in known],
        knows=bool(np.isfinite(correct).any()),
    )


def _colour(place: float) -> str:
    """From the first layer (0) to the last (1); black and red letters can be read on all."""
    start, end = (_EARLY, _MIDDLE) if place < 0.5 else (_MIDDLE, _LATE)
    share = 2 * place if place < 0.5 else 2 * place - 1
    parts = [round(a + share * (b - a)) for a, b in zip(start, end, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in parts)
