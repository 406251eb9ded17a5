"""What the targets of a probe mean, settled once for all its layers.

Class indices `(sample,)`; numbers `(sample, class)`, soft or multi-hot; or class indices of
positions, `(sample, position)` of tokens and `(sample, height, width)` of pixels, where -100 does
not count.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from resonance_toolkit import IGNORED_TARGET


@dataclass(frozen=True)
class Targets:
    """Targets that fit: whole numbers are `torch.long`, the rest is as it came."""

    kind: Literal["classes", "numbers", "positions"]
    values: Tensor

    def meaning(self, loss: Any) -> str:
        """Say what they were understood as, in the words that all packages use."""
        if not isinstance(loss, str):
            return "given to the loss"
        if self.kind != "numbers":
            return "classes"
        return "several labels" if loss == "bce" else "distributions"


def understand_targets(
    y: Any,
    n_samples: int,
    n_classes: int,
    *,
    loss: Any,
    token_counts: Collection[int | None] = (),
    may_wait: bool = False,
) -> Targets:
    """Find out what targets mean, and refuse those that do not fit.

    Args:
        y: What the user gave.
        n_samples: Samples of the latest pass.
        n_classes: Classes of the branches.
        loss: Of the branches: a name, or a callable, which may make of numbers what it likes.
        token_counts: How many positions those layers have whose pooling waits for the targets.
        may_wait: Whether values on an accelerator may be looked at, which waits for it.

    Raises:
        TypeError: If they are not a tensor.
        ValueError: If they are of another shape or kind, need a gradient, or are out of range.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"`y`: expected a tensor, got {type(y).__name__}")
    if y.requires_grad:
        raise ValueError("`y`: expected targets without gradient, got some that need one; detach")
    if n_samples == 0 and y.shape[:1] == (0,):
        raise ValueError("`y`: expected at least one sample, got an empty batch")

    has_values = can_look_at(y, may_wait=may_wait)
    is_whole = not y.is_floating_point() and not y.is_complex()
    is_column = y.shape == (n_samples, 1) and n_classes > 1
    if is_whole and is_column:
        y = y[:, 0]

    if is_whole and y.shape == (n_samples,):
        if has_values:
            _check_indices(y, n_classes, may_be_ignored=False)
        return Targets("classes", y.long())

    if y.shape == (n_samples, n_classes) and not (
        is_whole and _are_of_positions(y, n_classes in token_counts, loss, has_values=has_values)
    ):
        # A callable may make what it likes of numbers, and of NaN.
        if has_values and isinstance(loss, str):
            _check_numbers(y, loss)
        return Targets("numbers", y)

    if is_whole and y.dim() > 1 and len(y) == n_samples:
        if has_values:
            _check_indices(y, n_classes, may_be_ignored=True)
        return Targets("positions", y.long())

    raise ValueError(_unfit(y, n_samples, n_classes, is_whole=is_whole))


def check_some_count(targets: Targets, rows: Iterable[Tensor]) -> None:
    """Refuse a batch without a target that counts, where its values could not be looked at.

    Raises:
        ValueError: If no layer has a row.
    """
    if not can_look_at(targets.values) and not any(len(layer_rows) for layer_rows in rows):
        raise ValueError(f"`y`: expected a target that counts, all are {IGNORED_TARGET}")


def as_distribution(targets: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """Turn class indices into one-hot rows; give anything else as it is."""
    if targets.dim() > 1:
        return targets.to(dtype)

    # A comparison, since `one_hot` looks at the values, which vmap forbids and CUDA waits for.
    classes = torch.arange(n_classes, device=targets.device)
    return (targets[:, None] == classes).to(dtype)


def _are_of_positions(y: Tensor, are_as_many_tokens: bool, loss: Any, *, has_values: bool) -> bool:
    """Tell whether whole numbers `(sample, class)` are rather of as many positions.

    Raises:
        ValueError: If they could be either.
    """
    if not has_values or not (are_as_many_tokens or isinstance(loss, str)):
        return are_as_many_tokens
    if not bool(((y == 0) | (y == 1)).all()):
        return True
    if not are_as_many_tokens:
        return False
    raise ValueError(
        f"`y`: zeros and ones of shape {tuple(y.shape)} may be one for each class or one for each "
        "position; give those of classes as floating numbers, or attach with pool='spatial' for "
        "those of positions and pool='mean' for those of classes"
    )


def _check_indices(y: Tensor, n_classes: int, *, may_be_ignored: bool) -> None:
    classes = y[y != IGNORED_TARGET] if may_be_ignored else y
    if not classes.numel():
        raise ValueError(f"`y`: expected a target that counts, all are {IGNORED_TARGET}")

    low = int(classes.min())
    high = int(classes.max())
    if low < 0 or high >= n_classes:
        remark = f" (or {IGNORED_TARGET}, which does not count)" if may_be_ignored else ""
        raise ValueError(
            f"`y`: expected class indices 0 to {n_classes - 1}{remark}, got {low} to {high}"
        )


def _check_numbers(y: Tensor, loss: Any) -> None:
    # Through `amin` and `amax`, which pass NaN on.
    low, high = float(y.amin()), float(y.amax())
    if low != low:
        raise ValueError("`y`: expected targets that are numbers, got NaN")
    if low < 0 or high > 1:
        raise ValueError(
            f"`y`: expected numbers from 0 to 1 for loss={loss!r}, got {low:.4g} to {high:.4g}; "
            "logits are not labels, and real numbers need a callable `loss` in attach"
        )


def _unfit(y: Tensor, n_samples: int, n_classes: int, *, is_whole: bool) -> str:
    kind = "whole" if is_whole else "floating"
    cure = "; convert class indices by y.long()" if not is_whole and y.dim() != 2 else ""
    return (
        f"`y`: expected class indices ({n_samples},), or ({n_samples}, ...) of positions, or "
        f"numbers ({n_samples}, {n_classes}), got shape {tuple(y.shape)} of {kind} numbers{cure}"
    )


def can_look_at(y: Tensor, *, may_wait: bool = False) -> bool:
    """Tell whether values are at hand.

    On an accelerator a look waits for the device: worth it for the first loss, in which what is
    wrong with targets mostly shows, and for a measurement, not at every step. While a graph is
    recorded there it is forbidden; under vmap there are no values to look at.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if y.device.type == "cpu":
        return True

    is_recording = y.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return may_wait and y.device.type != "meta" and not is_recording
