"""Where points lie on lines and between models, and what their losses say together."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resonance_toolkit import check_whole

Array = NDArray[np.float64]

# What both `line` and `curve` say of a barrier.
BARRIER_ATTRIBUTES = {"long_name": "rise of the loss above both ends"}


def line_coordinates(size: int, span: tuple[float, float], *, has_end: bool) -> Array:
    """Check `size` and `span`, and lay out a line that holds alpha = 0 (and 1) exactly.

    Args:
        size: Points at equal distances.
        span: Where alpha begins and ends.
        has_end: Whether there is a model at alpha = 1.
    """
    size = check_whole("size", size, at_least=2)
    is_pair = isinstance(span, Sequence) and all(isinstance(s, int | float) for s in span)
    if not is_pair or len(span) != 2 or not -math.inf < span[0] < span[1] < math.inf:
        raise ValueError(f"`span`: expected two finite numbers, smaller first, got {span!r}")

    low, high = span
    if has_end and not low <= 0 < 1 <= high:
        raise ValueError(f"`span`: expected a range that contains both ends, 0 and 1, got {span!r}")

    regular = low + (high - low) * np.arange(size) / (size - 1)
    ends = [end for end in ((0.0, 1.0) if has_end else (0.0,)) if low <= end <= high]
    if not ends:
        return np.unique(regular)

    # A point that misses an end by round-off gives way to it.
    is_away = [np.abs(regular - end) > 1e-9 * (high - low) for end in ends]
    return np.unique(np.append(regular[np.all(is_away, axis=0)], ends))


def frame(positions: Array, size: int, margin: float) -> Array:
    """Coordinates of an axis that shows all positions, with room around them."""
    low = positions.min()
    high = positions.max()
    room = margin * (high - low)
    return np.linspace(low - room, high + room, size)


def barrier(alphas: Array, losses: Array) -> float:
    """Largest rise above the straight line between the losses at 0 and 1; NaN if unknown."""
    is_between = (alphas >= 0) & (alphas <= 1)
    t = alphas[is_between]
    losses_between = losses[is_between]
    chord = (1 - t) * losses_between[0] + t * losses_between[-1]
    return float(np.max(losses_between - chord))
