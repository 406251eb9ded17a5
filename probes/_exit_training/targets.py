"""Which logits and targets an exit takes, and the loss between them.

Logits are `(sample, class)` for a classifier and `(sample, token, class)` for a language model; a
"place" is what has one target: a sample or a token.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from resonance_toolkit import IGNORED_TARGET, dtype_name, logits_of

# How far the sum of a soft label may be from one: half precision has three digits.
_ROUNDING = 0.01


def exit_logits(output: Any) -> Tensor:
    """Find the logits in a model's output, and refuse those that exits cannot use.

    Raises:
        ValueError: If there are none `(sample, class)` or `(sample, token, class)`.
    """
    logits = logits_of(output)

    if logits.dim() not in (2, 3) or not logits.is_floating_point():
        raise ValueError(
            "`model`: expected logits (sample, class) or (sample, token, class), got shape "
            f"{tuple(logits.shape)} of {dtype_name(logits.dtype)}"
        )
    return logits


def as_class_indices(targets: Any, logits: Tensor) -> Any:
    """Return a column of class indices, or whole one-hot rows, of a classifier as `(sample,)`.

    All else stays as it is.
    """
    is_whole = isinstance(targets, Tensor) and not targets.is_floating_point()
    if not is_whole or logits.dim() != 2 or targets.dim() != 2:
        return targets

    n_classes = logits.shape[1]
    if n_classes > 1 and targets.shape[1] == 1:
        return targets[:, 0]
    if targets.shape[1] != n_classes:
        return targets

    rows = targets.long()
    is_one_hot = ((rows == 0) | (rows == 1)).all() & (rows.sum(1) == 1).all()
    return rows.argmax(1) if bool(is_one_hot) else targets


def check_exit_targets(targets: Tensor, logits: Tensor) -> None:
    """Refuse targets that do not fit the logits.

    Raises:
        TypeError: If they are not a tensor.
        ValueError: If their shape or values do not fit, or none of them counts.
    """
    if not isinstance(targets, Tensor):
        raise TypeError(f"`targets`: expected a tensor, got {type(targets).__name__}")

    *places, n_classes = logits.shape
    is_soft = targets.is_floating_point()
    is_classifier = logits.dim() == 2

    # Soft targets are distributions over classes, which a classifier may be given, but no text.
    expected_shape = tuple(logits.shape) if is_soft and is_classifier else tuple(places)
    if tuple(targets.shape) != expected_shape or (is_soft and not is_classifier):
        kind = "floating" if is_soft else "whole"
        raise ValueError(
            f"`targets`: expected indices {tuple(places)} for logits {tuple(logits.shape)}, got "
            f"shape {tuple(targets.shape)} of {kind} numbers"
        )
    if targets.numel() == 0:
        raise ValueError("`targets`: expected at least one, got an empty batch")

    # On an accelerator a look at the values would wait for the device at every step.
    if targets.device.type != "cpu":
        return
    if is_soft:
        _check_distributions(targets)
    else:
        _check_class_indices(targets, n_classes)


def _check_distributions(targets: Tensor) -> None:
    # Through `amin` and `amax`, which pass NaN on.
    low, high = float(targets.amin()), float(targets.amax())
    sums = targets.float().sum(1)
    error = float((sums - 1).abs().max())
    if low >= 0 and error < _ROUNDING:
        return

    numbers = "NaN" if low != low else f"{low:.4g} to {high:.4g}, with sums off by {error:.2g}"
    raise ValueError(
        f"`targets`: expected soft labels whose rows sum to one, got {numbers}; logits are "
        "not labels"
    )


def _check_class_indices(targets: Tensor, n_classes: int) -> None:
    counting = targets[targets != IGNORED_TARGET]
    if not len(counting):
        raise ValueError(f"`targets`: expected one that counts, all are {IGNORED_TARGET}")

    lowest = int(counting.min())
    highest = int(counting.max())
    if lowest < 0 or highest >= n_classes:
        raise ValueError(
            f"`targets`: expected indices 0 to {n_classes - 1} (or {IGNORED_TARGET}, which does "
            f"not count), got {lowest} to {highest}"
        )


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all places whose target counts, in float32 at least."""
    rows = logits.flatten(0, -2)
    if rows.itemsize < 4:
        rows = rows.float()

    if targets.is_floating_point():
        return F.cross_entropy(rows, targets.to(rows))
    indices = targets.to(rows.device).long().flatten()
    return F.cross_entropy(rows, indices, ignore_index=IGNORED_TARGET)
