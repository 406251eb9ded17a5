"""Targets of a probe: class indices `(sample,)`, or soft or multi-hot `(sample, class)`."""

import torch
from torch import Tensor


def check_targets(targets: Tensor, n_samples: int, n_classes: int) -> None:
    """Refuse targets that do not fit.

    Raises:
        TypeError: If they are no tensor.
        ValueError: If they are of another shape or kind, need a gradient, or are out of range.
    """
    if not isinstance(targets, Tensor):
        raise TypeError(f"`y`: expected a tensor, got {type(targets).__name__}")
    if targets.requires_grad:
        raise ValueError("`y`: expected targets without gradient, got some that need one; detach")

    shape = tuple(targets.shape)
    is_floating = targets.is_floating_point()
    are_indices = shape == (n_samples,) and not is_floating
    if not are_indices and shape != (n_samples, n_classes):
        kind = "floating" if is_floating else "whole"
        raise ValueError(
            f"`y`: expected class indices ({n_samples},) or numbers ({n_samples}, {n_classes}), "
            f"got shape {shape} of {kind} numbers"
        )
    if n_samples == 0:
        raise ValueError("`y`: expected at least one sample, got an empty batch")

    # On an accelerator a look at the values would wait for the device at every step, and an index
    # out of range fails there by itself; under vmap there are no values to look at.
    if are_indices and targets.device.type == "cpu" and not _is_inside_functorch():
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= n_classes:
            raise ValueError(
                f"`y`: expected class indices 0 to {n_classes - 1}, got {low} to {high}"
            )


def flatten_positions(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Make features `(row, width)` and a target for each row, on the features' device.

    Where features have several places per sample, each place is a row with its sample's target.
    """
    row_targets = targets.to(features.device)
    row_targets = row_targets.long() if targets.dim() == 1 else row_targets.to(features.dtype)

    if features.dim() == 3:
        n_places = features.shape[1]
        row_targets = row_targets.repeat_interleave(n_places, 0)
    return features.flatten(0, -2), row_targets


def as_distribution(targets: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """Turn class indices into one-hot rows; give anything else as it is."""
    if targets.dim() > 1:
        return targets.to(dtype)

    # A comparison, since `one_hot` looks at the values, which vmap forbids and CUDA waits for.
    classes = torch.arange(n_classes, device=targets.device)
    return (targets[:, None] == classes).to(dtype)


def _is_inside_functorch() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None
