"""One loss per sample, from what the user gives."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Any, Any], Tensor]


def cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of each sample; outputs may be tensors or have `logits`."""
    return F.cross_entropy(getattr(outputs, "logits", outputs), targets, reduction="none")


def per_sample(loss: Loss | None) -> Loss:
    """The loss with one value per sample: torch's own means are taken over each sample alone."""
    if loss is None:
        return cross_entropy
    if not callable(loss):
        raise TypeError(
            f"`loss`: expected a callable (outputs, targets), got {type(loss).__name__}"
        )
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "mean":
        if getattr(loss, "weight", None) is not None:
            raise ValueError(
                "`loss`: a weighted mean over the batch is no mean of samples; give a callable "
                "that returns one loss per sample"
            )
        by_sample: Any = copy.copy(loss)
        by_sample.reduction = "none"
        return partial(_means, by_sample, ignored=getattr(loss, "ignore_index", None))
    function: Any = loss
    if getattr(loss, "__module__", "") == F.__name__:
        defaults = {k: v.default for k, v in inspect.signature(function).parameters.items()}
        if "reduction" in defaults:
            each = partial(function, reduction="none")
            return partial(_means, each, ignored=defaults.get("ignore_index"))
    return loss


def loss_name(loss: Loss) -> str:
    """What a loss is called in the attributes of a result."""
    inner: Any = loss
    while isinstance(inner, partial):
        inner = inner.args[0] if inner.func is _means else inner.func
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def losses_of(loss: Loss, outputs: Any, targets: Any, count: int) -> Tensor:
    """Apply a loss and check that it gives one value per sample."""
    values = loss(outputs, targets)
    if not isinstance(values, Tensor):
        raise TypeError(f"`loss`: expected a tensor, got {type(values).__name__}")
    if values.shape != (count,):
        hint = "a mean or sum over the batch: use reduction='none'" if values.dim() == 0 else ""
        raise ValueError(
            f"`loss`: expected one value per sample, shape ({count},), got "
            f"{tuple(values.shape)}{', ' if hint else ''}{hint}"
        )
    return values


def _means(loss: Loss, outputs: Any, targets: Any, *, ignored: int | None) -> Tensor:
    values: Tensor = loss(getattr(outputs, "logits", outputs), targets)
    if values.dim() < 2:
        return values
    if ignored is None or targets.shape != values.shape:
        return values.flatten(1).mean(1)
    counted: Tensor = (targets != ignored).flatten(
        1
    )  # torch leaves the others out of its mean, too
    return (values.flatten(1) * counted).sum(1) / counted.sum(1)
