"""What is measured at a point: the loss, accuracy and further metrics, whatever their signature."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Measure = Callable[..., Any]


@dataclass(frozen=True)
class Objective:
    """A loss and metrics, each with the kind of arguments it wants."""

    loss: Measure
    kind: str  # "outputs": (outputs, targets); "closure": (model, x, y)
    metrics: Mapping[str, tuple[str, Measure]] = field(default_factory=dict)  # or "model": (model)

    @property
    def loss_name(self) -> str:
        """What the loss is called."""
        inner = getattr(self.loss, "func", self.loss)
        return str(getattr(inner, "__qualname__", type(inner).__qualname__))

    @property
    def ignored(self) -> int | None:
        """The target that the loss leaves out of its mean; None if it is not one of torch's."""
        if self.loss is cross_entropy:
            return -100
        if isinstance(self.loss, nn.Module):
            return getattr(self.loss, "ignore_index", None)
        inner = getattr(self.loss, "func", self.loss)
        if inner not in (F.cross_entropy, F.nll_loss):
            return None
        return int(getattr(self.loss, "keywords", {}).get("ignore_index", -100))

    @property
    def is_weighted(self) -> bool:
        """True if its mean over samples is not the mean of its means over batches."""
        return _is_weighted(self.loss)

    @property
    def needs_only_outputs(self) -> bool:
        """True if nothing but the model's outputs is read: its weights are not."""
        return self.kind == "outputs" and all(
            kind == "outputs" for kind, _ in self.metrics.values()
        )


def make_objective(loss: Measure | None, metrics: Mapping[str, Measure] | None) -> Objective:
    """Sort out what the user gave; cross-entropy if there is no loss."""
    taken = {"loss", "loss_se", "accuracy", "evaluated", "alpha", "beta"}
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"`metrics`: expected a mapping of names to callables, got {type(metrics).__name__}"
        )
    if clash := taken & set(metrics or {}):
        raise ValueError(f"`metrics`: the names {sorted(clash)} are taken")
    measure = cross_entropy if loss is None else _per_sample(loss)
    kind = _kind(measure, "loss")
    if kind == "model":
        raise TypeError("`loss`: expected a callable of (outputs, targets) or (model, x, y)")
    found = {name: (_kind(m, f"metrics[{name!r}]"), m) for name, m in (metrics or {}).items()}
    return Objective(measure, kind, found)


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of each sample; outputs may be tensors or have `logits`."""
    return F.cross_entropy(getattr(outputs, "logits", outputs), targets, reduction="none")


def apply(kind: str, measure: Measure, model: nn.Module, x: Any, y: Any, outputs: Any) -> Tensor:
    """The value on one batch: a scalar, or one number per sample."""
    value = measure(outputs, y) if kind == "outputs" else measure(model, x, y)
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


def apply_to_model(measure: Measure, model: nn.Module) -> float:
    """The value of a metric of the whole model; loss-landscapes metrics get their wrapper."""
    if _is_from_loss_landscapes(measure):
        wrapper = import_module("loss_landscapes.model_interface.model_wrapper")
        return float(measure(wrapper.wrap_model(model)))
    return float(measure(model))


def hits(outputs: Any, targets: Any) -> Tensor | None:
    """Per sample, the share of predictions that are right; None if this is no classification."""
    logits = getattr(outputs, "logits", outputs)
    if not (isinstance(logits, Tensor) and isinstance(targets, Tensor)):
        return None
    # One output, as of a binary classifier or a count, is no choice between classes.
    fits = logits.dim() >= 2 and logits.shape[:1] + logits.shape[2:] == targets.shape
    if not fits or logits.shape[1] < 2 or targets.is_floating_point():
        return None
    right = (logits.argmax(1) == targets).double()
    return right.reshape(len(right), -1).mean(1) if right.dim() > 1 else right


def margins(outputs: Any, targets: Tensor) -> Tensor:
    """How far the logit of the true class is above the others, for each sample.

    NaN if this is no classification, or targets are not all classes.
    """
    logits: Tensor = getattr(outputs, "logits", outputs)
    if hits(outputs, targets) is None or not 0 <= targets.min() <= targets.max() < logits.shape[1]:
        return torch.full((len(targets),), torch.nan)
    true = logits.gather(1, targets[:, None])
    others = logits.scatter(1, targets[:, None], -torch.inf)
    return (true - others.amax(1, keepdim=True))[:, 0]


def _kind(measure: Measure, argument: str) -> str:
    if not callable(measure):
        raise TypeError(f"`{argument}`: expected a callable, got {type(measure).__name__}")
    if _is_from_loss_landscapes(measure):
        return "model"
    called = measure.forward if isinstance(measure, nn.Module) else measure
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return "outputs"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    kinds = {1: "model", 2: "outputs", 3: "closure"}
    if any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in parameters) and not required:
        return "outputs"
    if len(required) not in kinds:
        raise TypeError(
            f"`{argument}`: expected a callable of (outputs, targets), (model, x, y) or, for a "
            f"metric, (model), got one with {len(required)} arguments"
        )
    return kinds[len(required)]


def _per_sample(loss: Measure) -> Measure:
    """The same loss without its mean over samples, where torch's `reduction` allows it."""
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "sum":
        raise ValueError("`loss`: expected a mean or one value per sample, got reduction 'sum'")
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "mean":
        if _is_weighted(loss):
            return loss  # a weighted mean is not the mean of its terms
        by_sample: Any = copy.copy(loss)
        by_sample.reduction = "none"
        return cast(Measure, by_sample)
    is_torch = getattr(loss, "__module__", "") == "torch.nn.functional"
    if is_torch and "reduction" in inspect.signature(loss).parameters:
        return partial(loss, reduction="none")
    return loss


def _is_weighted(loss: Measure) -> bool:
    classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    return classes and getattr(loss, "weight", None) is not None


def _is_from_loss_landscapes(measure: Measure) -> bool:
    return any(c.__module__.startswith("loss_landscapes.") for c in type(measure).__mro__)
