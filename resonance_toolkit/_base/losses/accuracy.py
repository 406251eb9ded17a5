"""Which predictions are right, by one rule for all packages."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from resonance_toolkit._base.data.language_models import IGNORED_TARGET
from resonance_toolkit._base.devices import widest_float
from resonance_toolkit._base.losses.default_loss import align_classes, mean_over_positions

# What transformers calls the scores of classes, and what torchvision calls those of pixels.
_NAMES_OF_LOGITS = ("logits", "out")


def correct_shares(outputs: Any, targets: Any, ignored: int = IGNORED_TARGET) -> Tensor | None:
    """The share of right predictions of each sample, NaN if it has no target which counts.

    Of a sample with several positions (tokens, pixels), the share of those that count; None if this
    is not a classification, or the model returns several tensors of which none is called `logits`
    or `out`.

    Args:
        outputs: What the model returns.
        targets: Of the same samples.
        ignored: The target that does not count.

    Examples:
        >>> correct_shares(torch.eye(3), torch.tensor([0, 1, 1])).tolist()
        [1.0, 1.0, 0.0]
        >>> correct_shares(torch.eye(3), torch.rand(3)) is None
        True
    """
    aligned = align_predictions(outputs, targets)
    if aligned is None:
        return None

    scores, classes = aligned
    is_right = (scores.argmax(1) == classes).to(widest_float(scores.device))

    # Not dropped here: how many there are, only a wait for the device would tell.
    if classes.dim() == 1:
        return is_right.masked_fill(classes == ignored, torch.nan)

    counts = classes != ignored
    shares = mean_over_positions(is_right, counts)
    return shares.masked_fill(~counts.reshape(len(counts), -1).any(1), torch.nan)


def align_predictions(outputs: Any, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Logits `(sample, class, ...)` and classes `(sample, ...)`; None if there are no classes."""
    logits = _named_logits(outputs)
    if logits is None or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None

    try:
        return align_classes(logits, targets)
    except ValueError:  # shapes that do not fit, or one output only, as of a count
        return None


def _named_logits(outputs: Any) -> Tensor | None:
    """The outputs if they are a tensor, or what they call their logits.

    Not any tensor among several, as `logits_of` takes it: which of a tuple tells the classes is for
    the loss to know, and an accuracy of the wrong one would mean nothing.
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        named = (outputs.get(name) for name in _NAMES_OF_LOGITS)
    else:
        named = (getattr(outputs, name, None) for name in _NAMES_OF_LOGITS)
    return next((logits for logits in named if isinstance(logits, Tensor)), None)
