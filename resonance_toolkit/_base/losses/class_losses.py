"""Torch's losses over classes, fitted to outputs and targets of any form, one value per sample.

`F.cross_entropy`, `F.nll_loss` and their modules want a tensor with the class axis second and
targets of type long. A language model gives an object whose logits have the class axis last; masks
come as bytes, labels as int32 or in a column. And their mean is over all positions of a batch that
are not ignored: another number for each way of cutting the samples into batches.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from resonance_toolkit._base.losses.class_targets import (
    class_out_of_range,
    extreme_classes,
    is_whole,
)
from resonance_toolkit._base.losses.default_loss import align_classes, mean_over_positions
from resonance_toolkit._base.losses.per_sample import (
    Loss,
    class_weights_of,
    ignore_index_of,
    logits_of,
    without_mean,
)


@dataclass(frozen=True)
class ClassLoss:
    """A loss over classes `(outputs, targets) -> (sample,)`.

    `loss`: called with logits `(sample, class, ...)` and classes `(sample, ...)`. `ignored`: the
    target that does not count. `has_ignored`: whether there is one. `largest`: the largest class.
    `scale`: where classes have weights, the number of samples over the sum of the weights of all
    their targets; None where they have none.
    """

    loss: Loss
    ignored: int
    has_ignored: bool
    largest: int
    scale: float | None = None

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each sample: a mean over its positions that count."""
        logits = logits_of(outputs)
        if not isinstance(targets, Tensor) or not is_whole(targets):
            return self.loss(logits, targets)

        # Torch has the class axis second; wherever that fits, it is meant.
        classes = targets.to(logits.device).long()
        if logits.dim() < 2 or logits.shape[:1] + logits.shape[2:] != classes.shape:
            logits, classes = align_classes(logits, classes)
        if self.largest >= logits.shape[1]:
            raise ValueError(class_out_of_range(self.largest, logits.shape[1], self.ignored))

        values = self.loss(logits, classes)
        if self.scale is not None:
            return values.reshape(len(values), -1).sum(1) * self.scale
        if self.has_ignored and values.dim() > 1:
            return mean_over_positions(values, classes != self.ignored)
        return values


def fit_class_loss(loss: Loss, targets: Iterable[Any]) -> Loss:
    """Return one of torch's losses over classes without its mean, fitted to targets.

    Another loss is returned as `without_mean` returns it. Torch's mean of a loss with class weights
    is no mean of samples: it divides by the weights of the targets in the batch. Here the terms of
    each sample are scaled alike, such that their mean over all samples is torch's of all of them in
    one batch, however they are cut.

    Args:
        loss: A function or module of `(outputs, targets)`.
        targets: Those of every batch.

    Raises:
        ValueError: If a target is not a class, or the loss is a sum over samples.

    Examples:
        >>> import torch
        >>> loss = fit_class_loss(F.cross_entropy, [torch.tensor([[0, -100]])])
        >>> loss({"logits": torch.zeros(1, 2, 4)}, torch.tensor([[0, -100]])).exp()
        tensor([4.])
    """
    by_sample = without_mean(loss)
    ignored = ignore_index_of(loss)
    if ignored is None or not _is_over_classes(loss):
        return by_sample

    pieces = [piece for piece in targets if isinstance(piece, Tensor) and is_whole(piece)]
    smallest, largest = extreme_classes(pieces, ignored)
    if smallest < 0:
        raise ValueError(class_out_of_range(smallest, None, ignored))

    # Distributions have weights in their terms, but torch does not divide by these.
    weights = class_weights_of(loss) if pieces else None

    # A partial function keeps its mean, unless that would count what is ignored.
    has_ignored = any(bool((piece == ignored).any()) for piece in pieces)
    is_no_mean_of_samples = has_ignored or weights is not None
    if is_no_mean_of_samples and isinstance(loss, partial) and "reduction" not in loss.keywords:
        by_sample = partial(loss, reduction="none")

    scale = None
    if weights is not None and largest < len(weights):  # what is larger is told beside outputs
        scale = _samples_by_weight(weights, pieces, ignored)
    return ClassLoss(by_sample, ignored, has_ignored, largest, scale)


def _samples_by_weight(weights: Tensor, pieces: list[Tensor], ignored: int) -> float:
    """Divide the number of samples by the sum of the weights of all targets that count."""
    total = 0.0
    for piece in pieces:
        classes = piece[piece != ignored].long().to(weights.device)
        total += weights.detach()[classes].cpu().double().sum().item()

    # As torch has it where no class has a weight.
    return sum(len(piece) for piece in pieces) / total if total else math.nan


def _is_over_classes(loss: Any) -> bool:
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return True
    return getattr(loss, "func", loss) in (F.cross_entropy, F.nll_loss)
