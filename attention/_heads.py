"""Which axes of a tensor are samples or windows, and which are attention heads."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

# How torch, timm, transformers and hand-written layers call the number of heads.
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "nheads")


def count_heads(module: nn.Module) -> int | None:
    """Find how many heads a layer says that it has, itself or in its configuration."""
    for owner in (module, getattr(module, "config", None)):
        for name in _HEAD_COUNTS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and count > 0:
                return count
    return None


def group_and_head_axes(
    batch: torch.Size, n_heads: int | None
) -> tuple[Callable[[Tensor], Tensor], tuple[int, int]]:
    """Find how axes `(*batch, a, b)` are brought into the form `(group, head, a, b)`.

    A group is a sample, or one window of it.

    Returns:
        What does it, and how many groups and heads there are.
    """
    if not batch:
        return lambda tensor: tensor[None, None], (1, 1)

    if len(batch) == 1:
        inner = n_heads if n_heads and batch[0] % n_heads == 0 else 1
        return lambda tensor: tensor.unflatten(0, (-1, inner)), (batch[0] // inner, inner)

    if len(batch) == 2:
        return lambda tensor: tensor, (batch[0], batch[1])

    # Windows after the heads, where the layer says how many heads there are.
    if n_heads and batch[-1] != n_heads and batch[1] == n_heads:
        n_windows = batch.numel() // n_heads
        return lambda tensor: tensor.movedim(1, -3).flatten(0, -4), (n_windows, n_heads)

    return lambda tensor: tensor.flatten(0, -4), (batch[:-1].numel(), batch[-1])


def attends_to_channels(module: nn.Module, n_heads: int, n_keys: int, widths: set[int]) -> bool:
    """Tell whether the keys are a head's channels, as in XCiT, and not tokens.

    Heads times channels make up the width that the layer's linear parts take in: it must be heads
    times keys then, and not heads times the width of the values.

    Args:
        module: The layer.
        n_heads: How many heads.
        n_keys: How many keys.
        widths: Sizes of the values' axes that may be a head's channels.
    """
    value_widths = {n_heads * width for width in widths or {n_keys}}
    if _has_child_of_width(module, value_widths):
        return False
    return _has_child_of_width(module, {n_heads * n_keys})


def _has_child_of_width(module: nn.Module, widths: set[int]) -> bool:
    return any(getattr(child, "in_features", None) in widths for child in module.children())
