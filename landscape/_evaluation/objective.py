"""What is measured at a point: the loss, accuracy and further metrics, and means over samples.

Measures    what the user gave, checked before any data are read
Objective   the same beside targets, which choose the loss where the user gave none
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from landscape._evaluation.compatibility import Kind, Measure, kind_of
from resonance_toolkit import (
    IGNORED_TARGET,
    ClassLoss,
    DefaultLoss,
    align_predictions,
    call_loss,
    count_samples,
    default_loss,
    fit_class_loss,
    has_class_weights,
    ignore_index_of,
    name_of,
    to_host,
)

# Variables and dimensions that the verbs make themselves.
_RESERVED_NAMES = {"loss", "loss_se", "accuracy", "evaluated", "alpha", "beta"}


@dataclass(frozen=True)
class Measures:
    """A loss, if there is one, and metrics, each with the kind of arguments it wants.

    Attributes:
        loss: What the user gave.
        kind: `"outputs"`, called as `(outputs, targets)`, or `"closure"`, as `(model, x, y)`.
        metrics: Kind and callable by name; here the kind may be `"model"`, too.
    """

    loss: Measure | None
    kind: Kind
    metrics: Mapping[str, tuple[Kind, Measure]] = field(default_factory=dict)

    @property
    def ignored_target(self) -> int | None:
        """The target that the loss leaves out of its mean; None if it is not one of torch's."""
        return IGNORED_TARGET if self.loss is None else ignore_index_of(self.loss)


@dataclass(frozen=True)
class Objective:
    """What is measured of a model on samples.

    Attributes:
        loss: One value per sample, where torch's `reduction` allows it.
        kind: `"outputs"` or `"closure"`.
        metrics: As in `Measures`.
        loss_name: What the loss is called.
        targets: What they were understood as.
        ignored_target: The target that does not count.
    """

    loss: Measure
    kind: Kind
    metrics: Mapping[str, tuple[Kind, Measure]]
    loss_name: str
    targets: str
    ignored_target: int

    @property
    def is_weighted(self) -> bool:
        """True if classes have weights: the mean over samples is then a ratio of two sums."""
        return isinstance(self.loss, ClassLoss) and self.loss.scale is not None

    @property
    def needs_only_outputs(self) -> bool:
        """True if nothing but the model's outputs is read: its weights are not."""
        kinds = {self.kind, *(kind for kind, _ in self.metrics.values())}
        return kinds == {"outputs"}

    @property
    def finds_logits(self) -> bool:
        """True if the loss finds the logits in whatever a model returns by itself."""
        return isinstance(self.loss, DefaultLoss | ClassLoss)

    def settle_targets(self, outputs: Any, targets: Any) -> "Objective":
        """The same, with what only outputs can tell: whether there is a target for each class."""
        if not isinstance(self.loss, DefaultLoss) or self.loss.if_by_class is None:
            return self

        meaning = self.loss.settle_meaning(outputs, targets)
        loss = replace(self.loss, meaning=meaning, if_by_class=None)
        return replace(self, loss=loss, loss_name=name_of(loss), targets=meaning)


def check_measures(loss: Measure | None, metrics: Mapping[str, Measure] | None) -> Measures:
    """Sort out what the user gave."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics`: expected a mapping of names to callables, got {type(metrics).__name__}"
        )
    if clash := _RESERVED_NAMES & set(metrics or {}):
        raise ValueError(f"`metrics`: the names {sorted(clash)} are taken")

    kind: Kind = "outputs"
    if loss is not None:
        kind = kind_of(loss, "loss")
        fit_class_loss(loss, [])  # refuses a sum
    if kind == "model":
        raise TypeError("`loss`: expected a callable of (outputs, targets) or (model, x, y)")

    kinds_and_metrics = {
        name: (kind_of(metric, f"metrics[{name!r}]"), metric)
        for name, metric in (metrics or {}).items()
    }
    return Measures(loss, kind, kinds_and_metrics)


def make_objective(measures: Measures, targets: list[Any]) -> Objective:
    """Choose the loss that the targets of all batches ask for, or fit the user's own to them."""
    loss: Measure
    if measures.loss is None:
        loss = default_loss(targets)
        meaning: str = loss.meaning
    else:
        loss = fit_class_loss(measures.loss, targets)
        meaning = "given to the loss"

    ignored = measures.ignored_target
    return Objective(
        loss,
        measures.kind,
        {name: _fit_metric(*metric, targets) for name, metric in measures.metrics.items()},
        loss_name=name_of(loss if measures.loss is None else measures.loss),
        targets=meaning,
        ignored_target=IGNORED_TARGET if ignored is None else ignored,
    )


def _fit_metric(kind: Kind, metric: Measure, targets: list[Any]) -> tuple[Kind, Measure]:
    """Fit one of torch's losses whose mean over a batch is not the mean over its samples."""
    if kind != "outputs" or not has_class_weights(metric):
        return kind, metric
    return kind, fit_class_loss(metric, targets)


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
    if kind == "outputs":
        value = call_loss(measure, outputs, targets)
    else:
        value = measure(model, inputs, targets)
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


def margins(outputs: Any, targets: Any) -> Tensor:
    """How far the logit of the true class is above the others, for each sample.

    A target that is not a class is never right: its margin is -1. NaN for the target that does not
    count, if this is not a classification, or if a sample has several positions (tokens, pixels): a
    margin of each would be more numbers than the surface has.
    """
    aligned = align_predictions(outputs, targets)
    if aligned is None or aligned[1].dim() > 1:
        return torch.full((count_samples(targets),), torch.nan, device="cpu")

    logits, classes = aligned
    is_class = (classes >= 0) & (classes < logits.shape[1])
    indices = classes.where(is_class, 0)[:, None]
    true_logit = logits.gather(1, indices)
    other_logits = logits.scatter(1, indices, -torch.inf)
    distances = (true_logit - other_logits.amax(1, keepdim=True))[:, 0]
    return distances.where(is_class, -1).masked_fill(classes == IGNORED_TARGET, torch.nan)


class Mean:
    """A mean over samples, from batches of per-sample values or of scalars.

    The values stay where they are until `bring_to_host` fetches those of several means at once.
    """

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
            return self._samples().mean().item()

        # One number per batch: weighted by batch size, since batches may be unequal.
        total = sum(v.double() * n for v, n in zip(self.values, self.sizes, strict=True))
        return float(total) / sum(self.sizes)

    def mean_of_numbers(self) -> float:
        """Over all samples whose value is a number."""
        mean = self.mean()
        if not math.isnan(mean):
            return mean

        # Only now: to pick the numbers takes longer than to average them.
        self.values = [value[~value.isnan()] for value in self.values]
        return self.mean()

    def standard_error(self) -> float:
        """Of the mean over samples; NaN if the loss gave one number per batch."""
        if not self.values[0].dim():
            return math.nan
        samples = self._samples()
        return samples.std().item() / math.sqrt(len(samples)) if len(samples) > 1 else math.nan

    def _samples(self) -> Tensor:
        # Most data fit into one batch, which need not be copied.
        values = self.values[0] if len(self.values) == 1 else torch.cat(self.values)
        return values.double()


def bring_to_host(means: Sequence[Mean], extra_tensors: Sequence[Tensor]) -> list[Tensor]:
    """Fetch the values of all means, and other tensors, waiting once; give these others back."""
    on_host = iter(to_host([*(value for mean in means for value in mean.values), *extra_tensors]))
    for mean in means:
        mean.values = [next(on_host) for _ in mean.values]
    return list(on_host)
