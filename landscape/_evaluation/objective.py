"""What is measured at a point: the loss, accuracy and further metrics, and means over samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from landscape._evaluation.compatibility import Kind, Measure, kind_of
from resonance_toolkit import (
    cross_entropy_per_sample,
    has_class_weights,
    ignore_index_of,
    name_of,
    without_mean,
)

# Variables and dimensions that the verbs make themselves.
_RESERVED_NAMES = {"loss", "loss_se", "accuracy", "evaluated", "alpha", "beta"}


@dataclass(frozen=True)
class Objective:
    """A loss and metrics, each with the kind of arguments it wants.

    Attributes:
        loss: One value per sample, where torch's `reduction` allows it.
        kind: `"outputs"`, called as `(outputs, targets)`, or `"closure"`, as `(model, x, y)`.
        metrics: Kind and callable by name; here the kind may be `"model"`, too.
    """

    loss: Measure
    kind: Kind
    metrics: Mapping[str, tuple[Kind, Measure]] = field(default_factory=dict)

    @property
    def loss_name(self) -> str:
        """What the loss is called."""
        # The default goes by the name that users know.
        return "cross_entropy" if self.loss is cross_entropy_per_sample else name_of(self.loss)

    @property
    def ignored_target(self) -> int | None:
        """The target that the loss leaves out of its mean; None if it is not one of torch's."""
        return ignore_index_of(self.loss)

    @property
    def is_weighted(self) -> bool:
        """True if its mean over samples is not the mean of its means over batches."""
        return has_class_weights(self.loss)

    @property
    def needs_only_outputs(self) -> bool:
        """True if nothing but the model's outputs is read: its weights are not."""
        kinds = {self.kind, *(kind for kind, _ in self.metrics.values())}
        return kinds == {"outputs"}


def make_objective(loss: Measure | None, metrics: Mapping[str, Measure] | None) -> Objective:
    """Sort out what the user gave; cross-entropy if there is no loss."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics`: expected a mapping of names to callables, got {type(metrics).__name__}"
        )
    if clash := _RESERVED_NAMES & set(metrics or {}):
        raise ValueError(f"`metrics`: the names {sorted(clash)} are taken")

    kind: Kind = "outputs"
    if loss is not None:
        kind = kind_of(loss, "loss")
    if kind == "model":
        raise TypeError("`loss`: expected a callable of (outputs, targets) or (model, x, y)")

    kinds_and_metrics = {
        name: (kind_of(metric, f"metrics[{name!r}]"), metric)
        for name, metric in (metrics or {}).items()
    }
    per_sample = cross_entropy_per_sample if loss is None else _per_sample(loss)
    return Objective(per_sample, kind, kinds_and_metrics)


def evaluate_on_batch(
    measure: Measure, kind: Kind, model: nn.Module, batch: tuple[Any, Any], outputs: Any
) -> Tensor:
    """The value of a loss or metric on one batch: a scalar, or one number per sample.

    Args:
        measure: Of kind "outputs" or "closure".
        kind: Which.
        model: Called by closures.
        batch: Inputs and targets.
        outputs: What the model gives for the inputs; not read by closures.
    """
    inputs, targets = batch
    value = measure(outputs, targets) if kind == "outputs" else measure(model, inputs, targets)
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


def correct_share(outputs: Any, targets: Any) -> Tensor | None:
    """Per sample, the share of predictions that are right; None if this is no classification."""
    logits = _named_logits(outputs)
    if logits is None or not isinstance(targets, Tensor):
        return None

    # One output, as of a binary classifier or a count, is no choice between classes.
    fits = logits.dim() >= 2 and logits.shape[:1] + logits.shape[2:] == targets.shape
    if not fits or logits.shape[1] < 2 or targets.is_floating_point():
        return None

    is_right = (logits.argmax(1) == targets).double()
    return is_right.reshape(len(is_right), -1).mean(1) if is_right.dim() > 1 else is_right


def margins(outputs: Any, targets: Tensor) -> Tensor:
    """How far the logit of the true class is above the others, for each sample.

    NaN if this is no classification, or targets are not all classes.
    """
    undefined = torch.full((len(targets),), torch.nan)
    logits = _named_logits(outputs)
    if logits is None or correct_share(outputs, targets) is None:
        return undefined
    if not 0 <= targets.min() <= targets.max() < logits.shape[1]:
        return undefined

    true_logit = logits.gather(1, targets[:, None])
    other_logits = logits.scatter(1, targets[:, None], -torch.inf)
    return (true_logit - other_logits.amax(1, keepdim=True))[:, 0]


class Mean:
    """A mean over samples, from batches of per-sample values or of scalars."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.sizes: list[int] = []
        self.is_defined = True

    def add(self, value: Tensor | None, n_samples: int) -> None:
        """Take in the value of one batch; None makes the mean undefined."""
        if value is None:
            self.is_defined = False
            return

        # A loss of each token or pixel: first the mean of each sample.
        if value.dim() > 1 and len(value) == n_samples:
            value = value.reshape(n_samples, -1).mean(1)

        if value.dim() and value.shape != (n_samples,):
            raise ValueError(
                "a loss or metric returned shape "
                f"{tuple(value.shape)} for {n_samples} samples: expected a scalar or one per sample"
            )
        self.values.append(value.detach())
        self.sizes.append(n_samples)

    def mean(self) -> float:
        """Over all samples; NaN if there is nothing."""
        if not self.is_defined or not self.values:
            return math.nan

        if self.values[0].dim():
            return torch.cat(self.values).double().mean().item()

        # One number per batch: weighted by batch size, since batches may be unequal.
        total = sum(v.double() * n for v, n in zip(self.values, self.sizes, strict=True))
        return float(total) / sum(self.sizes)

    def standard_error(self) -> float:
        """Of the mean over samples; NaN if the loss gave one number per batch."""
        if not self.values[0].dim():
            return math.nan
        samples = torch.cat(self.values).double()
        return samples.std().item() / math.sqrt(len(samples)) if len(samples) > 1 else math.nan


def _per_sample(loss: Measure) -> Measure:
    per_sample = without_mean(loss)

    # Torch divides a weighted sum by the sum of the weights: the mean of its terms is another one.
    return loss if has_class_weights(loss) else per_sample


def _named_logits(outputs: Any) -> Tensor | None:
    """The outputs if they are a tensor, or what they call their logits.

    Not any tensor among several, as `logits_of` takes it: which of a tuple tells the classes is for
    the loss to know, and an accuracy of the wrong one would mean nothing.
    """
    if isinstance(outputs, Tensor):
        return outputs
    by_key = outputs.get("logits") if isinstance(outputs, Mapping) else None
    logits = getattr(outputs, "logits", by_key)
    return logits if isinstance(logits, Tensor) else None
