import torch
from torch import Tensor


def check_targets(targets: Tensor, samples: int, classes: int) -> None:
    """Refuse targets that do not fit: indices `(sample,)`, or numbers `(sample, class)`."""
    if not isinstance(targets, Tensor):
        raise TypeError(f"`y`: expected a tensor, got {type(targets).__name__}")
    if targets.requires_grad:
        raise ValueError("`y`: expected targets without gradient, got some that need one; detach")
    shape = tuple(targets.shape)
    wanted = f"class indices ({samples},) or numbers ({samples}, {classes})"
    floating = targets.is_floating_point()
    if shape not in ((samples,), (samples, classes)) or (len(shape) == 1 and floating):
        kind = "floating" if floating else "whole"
        raise ValueError(f"`y`: expected {wanted}, got shape {shape} of {kind} numbers")
    if samples == 0:
        raise ValueError("`y`: expected at least one sample, got an empty batch")
    # On an accelerator a look at the values would wait for the device at every step, and an index
    # out of range fails there by itself; under vmap there are no values to look at.
    if len(shape) == 1 and targets.device.type == "cpu" and not _inside_functorch():
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= classes:
            raise ValueError(f"`y`: expected class indices 0 to {classes - 1}, got {low} to {high}")


def rows_of(targets: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Features `(row, width)` and a target for each row, on the features' device.

    Where features have several places per sample, each place is a row with its sample's target.
    """
    goals = targets.to(features.device)
    goals = goals.long() if goals.dim() == 1 else goals.to(features.dtype)
    if features.dim() == 3:
        goals = goals.repeat_interleave(features.shape[1], 0)
    return features.flatten(0, -2), goals


def _inside_functorch() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None
