"""The loss that targets ask for, by their shape and type, one value per sample.

What targets mean is settled once, from all of them: whether they are whole numbers, zeros and ones,
or distributions. How they meet a model's output is settled by shape, at each call. Real numbers ask
for no loss in particular, so that the user must give one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from resonance_toolkit._base.data.forms import Batches, index_rows
from resonance_toolkit._base.data.language_models import IGNORED_TARGET
from resonance_toolkit._base.losses.class_targets import (
    class_out_of_range,
    extreme_classes,
    is_whole,
)
from resonance_toolkit._base.losses.per_sample import logits_of

Meaning: TypeAlias = Literal["classes", "several labels", "distributions"]

# Rows of distributions may be off by this much: they are often float32 or smoothed by hand.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class DefaultLoss:
    """A loss `(outputs, targets) -> (sample,)`, chosen by what the targets mean.

    `largest`: the largest class among all targets, so that it can be compared with the number of
    classes without looking at the values again. `if_by_class`: what whole numbers mean if there is
    one for each class, not one for each position: a model's output tells.
    """

    meaning: Meaning
    largest: int | None = None
    if_by_class: Meaning | None = None

    @property
    def __name__(self) -> str:
        """What torch calls it, for the attributes of a result."""
        if self.meaning == "several labels":
            return "binary_cross_entropy_with_logits"
        return "cross_entropy"

    def settle_meaning(self, outputs: Any, targets: Tensor) -> Meaning:
        """Say what targets mean beside a model's outputs, which settle what is one per class."""
        is_by_class = targets.shape == logits_of(outputs).shape
        if self.if_by_class is not None and is_by_class:
            return self.if_by_class
        return self.meaning

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of each sample: a mean over its positions that count."""
        logits = logits_of(outputs)
        meaning = self.settle_meaning(logits, targets)

        if meaning == "classes":
            return self._cross_entropy_of_classes(logits, targets)

        shares = targets.to(logits.device, logits.dtype).reshape(len(targets), -1)
        scores = logits.reshape(len(logits), -1)
        if shares.shape != scores.shape:
            raise ValueError(_say_unfit(logits, targets))
        if meaning == "several labels":
            values = F.binary_cross_entropy_with_logits(scores, shares, reduction="none")
            return values.mean(1)
        return F.cross_entropy(scores, shares, reduction="none")

    def _cross_entropy_of_classes(self, logits: Tensor, targets: Tensor) -> Tensor:
        scores, classes = align_classes(logits, targets)
        n_classes = scores.shape[1]
        if self.largest is not None and self.largest >= n_classes:
            raise ValueError(class_out_of_range(self.largest, n_classes))
        values = F.cross_entropy(scores, classes, reduction="none", ignore_index=IGNORED_TARGET)
        if values.dim() == 1:
            return values
        return mean_over_positions(values, classes != IGNORED_TARGET)


def default_loss(targets: Iterable[Any]) -> DefaultLoss:
    """Choose the loss that targets ask for.

    Whole numbers are classes, of samples or of positions (tokens, pixels); -100 does not count.
    Zeros and ones `(sample, class)` are several labels, each with its own sigmoid; rows that sum to
    one are distributions.

    Args:
        targets: Those of every batch.

    Raises:
        TypeError: If targets are not tensors.
        ValueError: If they are NaN, or numbers that no loss stands for.

    Examples:
        >>> import torch
        >>> loss = default_loss([torch.tensor([0, 2])])
        >>> loss(torch.zeros(2, 4), torch.tensor([0, 2])).exp()
        tensor([4., 4.])
        >>> default_loss([torch.tensor([0.5, 2.0])])
        Traceback (most recent call last):
        ValueError: `data`: targets are real numbers, for which there is no default loss; ...
    """
    pieces = list(targets)
    for piece in pieces:
        if not isinstance(piece, Tensor):
            raise TypeError(
                f"`data`: expected targets in one tensor, got {type(piece).__name__}; give a `loss`"
            )

    if all(is_whole(piece) for piece in pieces):
        return _loss_of_whole_numbers(pieces)

    numbers = [_as_rows(piece) for piece in pieces]
    if any(bool(piece.isnan().any()) for piece in numbers):
        raise ValueError("`data`: expected targets that are numbers, got NaN")
    if all(_are_distributions(piece) for piece in numbers):
        return DefaultLoss("distributions")
    if all(_are_zeros_and_ones(piece) for piece in numbers):
        return DefaultLoss("several labels")
    raise ValueError(
        "`data`: targets are real numbers, for which there is no default loss; give one, such as "
        "loss=torch.nn.functional.mse_loss"
    )


def leave_out_uncounted(
    batches: Batches, ignored: int = IGNORED_TARGET, *, may_be_all: bool = False
) -> Batches:
    """Drop the samples that have no target which counts, as torch's own means do.

    Args:
        batches: Pairs of inputs and targets.
        ignored: The target that does not count.
        may_be_all: If True, it is no error if none is left, as in one batch of many.

    Raises:
        ValueError: If none is left.

    Examples:
        >>> import torch
        >>> x = torch.arange(3)
        >>> leave_out_uncounted([(x, torch.tensor([0, -100, 1]))])
        [(tensor([0, 2]), tensor([0, 1]))]
    """
    counted_batches: Batches = []
    for inputs, targets in batches:
        counts = _samples_that_count(targets, ignored)
        if counts is None or bool(counts.all()):
            counted_batches.append((inputs, targets))
        elif bool(counts.any()):
            rows = counts.nonzero()[:, 0]
            counted_batches.append((index_rows(inputs, rows), index_rows(targets, rows)))

    if not counted_batches and not may_be_all:
        raise ValueError(f"`data`: expected a target that counts, all are {ignored}")
    return counted_batches


def _samples_that_count(targets: Any, ignored: int) -> Tensor | None:
    if not isinstance(targets, Tensor) or not is_whole(targets):
        return None
    return (targets != ignored).reshape(len(targets), -1).any(1)


def align_classes(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Bring logits into the shape `(sample, class, ...)` and classes into `(sample, ...)`.

    The class axis is found by shape: second, as torch has it, or last, as language models do.

    Raises:
        ValueError: If there is none, or it could be either.
    """
    classes = targets.to(logits.device).long()
    if classes.dim() == 2 and classes.shape[1] == 1 and logits.dim() == 2:
        classes = classes[:, 0]

    is_second = logits.dim() >= 2 and logits.shape[:1] + logits.shape[2:] == classes.shape
    is_last = logits.dim() >= 2 and logits.shape[:-1] == classes.shape
    if is_second and is_last and logits.dim() > 2:
        raise ValueError(
            f"`data`: the class axis of outputs {tuple(logits.shape)} could be the second or the "
            "last; give a `loss` of (outputs, targets)"
        )
    if not (is_second or is_last):
        raise ValueError(_say_unfit(logits, targets))

    scores = logits if is_second else logits.movedim(-1, 1)
    if scores.shape[1] < 2:
        raise ValueError(
            "`data`: one output per sample is not a choice between classes; give a `loss` of "
            "(outputs, targets)"
        )
    return scores, classes


def mean_over_positions(values: Tensor, counts: Tensor) -> Tensor:
    """Average `(sample, ...)` over each sample's positions that count; NaN if none does."""
    if values.dim() < 2:
        return values
    weights = counts.flatten(1).to(values.dtype)
    return (values.flatten(1) * weights).sum(1) / weights.sum(1)


def _loss_of_whole_numbers(pieces: list[Tensor]) -> DefaultLoss:
    smallest, largest = extreme_classes(pieces)
    if smallest < 0:
        raise ValueError(class_out_of_range(smallest))

    if_by_class: Meaning | None = None
    if all(piece.dim() == 2 and piece.shape[1] > 1 for piece in pieces) and largest <= 1:
        is_one_hot = all(_are_distributions(_as_rows(piece)) for piece in pieces)
        if_by_class = "distributions" if is_one_hot else "several labels"
    return DefaultLoss("classes", largest, if_by_class)


def _as_rows(targets: Tensor) -> Tensor:
    # In main memory: not every accelerator has float64.
    return targets.detach().cpu().double().reshape(len(targets), -1)


def _are_zeros_and_ones(rows: Tensor) -> bool:
    return bool(((rows == 0) | (rows == 1)).all())


def _are_distributions(rows: Tensor) -> bool:
    if rows.shape[1] < 2:
        return False
    sums_to_one = ((rows.sum(1) - 1).abs() < _ROUNDING).all()
    return bool(sums_to_one and (rows >= 0).all())


def _say_unfit(logits: Tensor, targets: Tensor) -> str:
    return (
        f"`data`: targets of shape {tuple(targets.shape)} fit no loss for outputs of shape "
        f"{tuple(logits.shape)}; give a `loss` of (outputs, targets)"
    )
