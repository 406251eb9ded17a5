"""One loss per sample, from what the user gives.

Whatever is measured here is measured of each sample's own loss, so a mean over the batch has to go
before anything else. Torch's losses can be asked to leave it out; where a sample has several terms
(tokens, pixels, outputs), their mean over that sample alone takes its place. Without a loss of the
user's, the targets decide.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resonance_toolkit import (
    ClassLoss,
    DefaultLoss,
    Loss,
    align_classes,
    call_loss,
    check_loss,
    check_shares,
    default_loss,
    fit_class_loss,
    has_class_weights,
    ignore_index_of,
    logits_of,
    mean_over_positions,
    name_of,
    without_mean,
)


@dataclass(frozen=True, eq=False)
class MeanOfSample:
    """One of torch's losses, averaged over the terms of each sample.

    Attributes:
        loss: With `reduction="none"`.
        ignored_target: The target that does not count, if the loss has one.
    """

    loss: Loss
    ignored_target: int | None

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each sample, `(sample,)`."""
        logits = logits_of(outputs)
        if isinstance(targets, Tensor):
            targets = targets.to(logits.device)  # a model may be spread over several
        if self.ignored_target is not None and not targets.is_floating_point():
            logits, targets = _bring_class_axis_second(logits, targets)

        try:
            terms: Tensor = self.loss(logits, targets)
        except IndexError as error:
            raise ValueError(
                f"`data`: expected classes 0 to {logits.shape[1] - 1}, got {int(targets.max())} "
                f"({error})"
            ) from error
        if terms.dim() < 2:
            return terms

        if self.ignored_target is None or targets.shape != terms.shape:
            return terms.flatten(1).mean(1)

        # Torch leaves ignored targets out of its own mean, too.
        return mean_over_positions(terms, targets != self.ignored_target)


def choose_loss(loss: Loss | None, targets: Iterable[Any]) -> Loss:
    """Return a loss with one value per sample: the user's, or the one that all targets ask for."""
    if loss is None:
        return default_loss(targets)
    check_loss(loss, may_call_model=False)
    targets = list(targets)
    check_shares(loss, targets)

    # Weights of classes are put in relation to those of all targets, not of a batch.
    if has_class_weights(loss):
        return fit_class_loss(loss, targets)

    loss_without_mean = without_mean(loss)
    if loss_without_mean is loss:
        return loss  # not one of torch's means: has to give one value per sample by itself
    return MeanOfSample(loss_without_mean, ignore_index_of(loss))


def name_of_loss(loss: Loss) -> str:
    """Say what a loss is called in the attributes of a result."""
    return name_of(loss.loss if isinstance(loss, MeanOfSample | ClassLoss) else loss)


def settle_meaning(loss: Loss, outputs: Any, targets: Any) -> str:
    """Say what targets were understood as, in the attributes of a result."""
    if isinstance(loss, DefaultLoss):
        return loss.settle_meaning(outputs, targets)
    return "given to the loss"


def evaluate_loss(loss: Loss, outputs: Any, targets: Any, n_samples: int) -> Tensor:
    """Apply a loss, and check that it gives one value per sample."""
    values = call_loss(loss, outputs, targets)

    if not isinstance(values, Tensor):
        raise TypeError(f"`loss`: expected a tensor, got {type(values).__name__}")
    if values.shape != (n_samples,):
        cure = ", a mean or sum over the batch: use reduction='none'" if values.dim() == 0 else ""
        raise ValueError(
            f"`loss`: expected one value per sample, shape ({n_samples},), got "
            f"{tuple(values.shape)}{cure}"
        )
    return values


def _bring_class_axis_second(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and classes as torch's losses take them; language models have classes last."""
    if logits.shape[:1] + logits.shape[2:] == targets.shape:
        return logits, targets.long()
    return align_classes(logits, targets)
