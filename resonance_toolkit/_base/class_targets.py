"""Targets that are classes: which there are, and what to say of one that is none."""

import torch
from torch import Tensor

from resonance_toolkit._base.language_models import IGNORED_TARGET


def extreme_classes(pieces: list[Tensor], ignored: int = IGNORED_TARGET) -> tuple[int, int]:
    """Find the smallest class (0 or below) and the largest (0 or above) among those that count."""
    smallest, largest = 0, 0
    for piece in pieces:
        counted = piece[piece != ignored]
        if counted.numel():
            low, high = (int(extreme) for extreme in torch.aminmax(counted.long()))
            smallest, largest = min(smallest, low), max(largest, high)
    return smallest, largest


def class_out_of_range(
    target: int, n_classes: int | None = None, ignored: int = IGNORED_TARGET
) -> str:
    """Say that a target is no class."""
    expected = "of at least 0" if n_classes is None else f"0 to {n_classes - 1}"
    return f"`data`: expected classes {expected} (or {ignored}, which does not count), got {target}"


def is_whole(targets: Tensor) -> bool:
    """Tell whether targets are whole numbers, or true and false."""
    return not targets.is_floating_point() and not targets.is_complex()
