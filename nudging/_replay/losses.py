"""One loss per sample, from what the user gives.

Whatever is measured here is measured of each sample's own loss, so a mean over the batch has to go
before anything else. Torch's losses can be asked to leave it out; where a sample has several terms
(tokens, pixels, outputs), their mean over that sample alone takes its place.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resonance_toolkit import (
    Loss,
    cross_entropy_per_sample,
    ignore_index_of,
    logits_of,
    mean_over_positions,
    name_of,
    without_mean,
)


@dataclass(frozen=True, eq=False)
class MeanOfSample:
    """One of torch's losses, averaged over the terms of each sample.

    Class weights stay in the terms, as torch's `reduction="none"` has them; the mean divides by the
    number of terms and not by the sum of their weights, which would differ from sample to sample.

    Attributes:
        loss: With `reduction="none"`.
        ignored_target: The target that does not count, if the loss has one.
    """

    loss: Loss
    ignored_target: int | None

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each sample, `(sample,)`."""
        terms: Tensor = self.loss(logits_of(outputs), targets)
        if terms.dim() < 2:
            return terms

        if self.ignored_target is None or targets.shape != terms.shape:
            return terms.flatten(1).mean(1)

        # Torch leaves ignored targets out of its own mean, too.
        return mean_over_positions(terms, targets != self.ignored_target)


def make_loss_per_sample(loss: Loss | None) -> Loss:
    """Return a loss with one value per sample; cross-entropy if there is none."""
    if loss is None:
        return cross_entropy_per_sample
    if not callable(loss):
        raise TypeError(
            f"`loss`: expected a callable (outputs, targets), got {type(loss).__name__}"
        )

    loss_without_mean = without_mean(loss)
    if loss_without_mean is loss:
        return loss  # not one of torch's means: has to give one value per sample by itself
    return MeanOfSample(loss_without_mean, ignore_index_of(loss))


def name_of_loss(loss: Loss) -> str:
    """Say what a loss is called in the attributes of a result."""
    if loss is cross_entropy_per_sample:
        return "cross_entropy"
    return name_of(loss.loss if isinstance(loss, MeanOfSample) else loss)


def evaluate_loss(loss: Loss, outputs: Any, targets: Any, n_samples: int) -> Tensor:
    """Apply a loss, and check that it gives one value per sample."""
    values = loss(outputs, targets)

    if not isinstance(values, Tensor):
        raise TypeError(f"`loss`: expected a tensor, got {type(values).__name__}")
    if values.shape != (n_samples,):
        cure = ", a mean or sum over the batch: use reduction='none'" if values.dim() == 0 else ""
        raise ValueError(
            f"`loss`: expected one value per sample, shape ({n_samples},), got "
            f"{tuple(values.shape)}{cure}"
        )
    return values
