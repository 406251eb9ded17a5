"""Targets that are classes: which ones there are, and what to say of a target that is not one."""

import torch
from torch import Tensor

from resonance_toolkit._base.data.language_models import IGNORED_TARGET


def extreme_classes(pieces: list[Tensor], ignored: int = IGNORED_TARGET) -> tuple[int, int]:
    """Find the smallest class (0 or below) and the largest (0 or above) among those that count."""
    # What does not count stands as a 0, and all pieces are looked at in one go: on an accelerator
    # each look, and each choice of elements, waits for it.
    classes = [piece.long().masked_fill(piece == ignored, 0) for piece in pieces if piece.numel()]
    if not classes:
        return 0, 0

    device = classes[0].device
    extremes = torch.stack([torch.stack(piece.aminmax()).to(device) for piece in classes])
    smallest, largest = torch.stack([extremes.min(), extremes.max()]).tolist()
    return min(smallest, 0), max(largest, 0)


def class_out_of_range(
    target: int, n_classes: int | None = None, ignored: int = IGNORED_TARGET
) -> str:
    """Say that a target is not a class."""
    expected = "of at least 0" if n_classes is None else f"0 to {n_classes - 1}"
    return f"`data`: expected classes {expected} (or {ignored}, which does not count), got {target}"


def is_whole(targets: Tensor) -> bool:
    """Tell whether targets are whole numbers, or true and false."""
    return not targets.is_floating_point() and not targets.is_complex()
