import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # as in torch and transformers: a target that does not count


def check_exit_targets(targets: Tensor, logits: Tensor) -> None:
    """Refuse targets that do not fit the logits `(sample, class)` or `(sample, token, class)`."""
    if not isinstance(targets, Tensor):
        raise TypeError(f"`targets`: expected a tensor, got {type(targets).__name__}")
    *places, classes = logits.shape
    soft = targets.is_floating_point()
    wanted = tuple(logits.shape) if soft and logits.dim() == 2 else tuple(places)
    if tuple(targets.shape) != wanted or (soft and logits.dim() == 3):
        kind = "floating" if soft else "whole"
        raise ValueError(
            f"`targets`: expected indices {tuple(places)} for logits {tuple(logits.shape)}, got "
            f"shape {tuple(targets.shape)} of {kind} numbers"
        )
    if targets.numel() == 0:
        raise ValueError("`targets`: expected at least one, got an empty batch")
    # On an accelerator a look at the values would wait for the device at every step.
    if not soft and targets.device.type == "cpu":
        kept = targets[targets != IGNORED]
        if not len(kept):
            raise ValueError(f"`targets`: expected one that counts, all are {IGNORED}")
        low, high = int(kept.min()), int(kept.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"`targets`: expected indices 0 to {classes - 1} (or {IGNORED}, which does not "
                f"count), got {low} to {high}"
            )


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all places whose target counts, in float32 at least."""
    rows = logits.flatten(0, -2)
    rows = rows.float() if rows.itemsize < 4 else rows
    if targets.is_floating_point():
        return F.cross_entropy(rows, targets.to(rows))
    return F.cross_entropy(rows, targets.to(rows.device).long().flatten(), ignore_index=IGNORED)
