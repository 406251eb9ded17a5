"""Losses as the instruments need them: of each sample, from whatever a model returns."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from resonance_toolkit._base.facts import first_tensor

Loss: TypeAlias = Callable[[Any, Any], Tensor]


def logits_of(outputs: Any) -> Tensor:
    """Find the logits in whatever a model returns.

    A tensor is taken as it is; then an attribute or key `logits`; then the first tensor inside.

    Raises:
        ValueError: If there is no tensor.

    Examples:
        >>> import torch
        >>> logits_of({"loss": torch.zeros(()), "logits": torch.ones(1, 2)})
        tensor([[1., 1.]])
    """
    # A tensor first: torch.compile would warn of an attribute that tensors lack.
    if isinstance(outputs, Tensor):
        return outputs

    by_key = outputs.get("logits") if isinstance(outputs, Mapping) else None
    for logits in (getattr(outputs, "logits", None), by_key, first_tensor(outputs)):
        if isinstance(logits, Tensor):
            return logits
    raise ValueError(f"`model`: expected an output with logits, got {type(outputs).__name__}")


def cross_entropy_per_sample(outputs: Any, targets: Tensor) -> Tensor:
    """Return the softmax cross-entropy of each sample, `(sample, ...)`.

    Examples:
        >>> import torch
        >>> cross_entropy_per_sample(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
        tensor([4., 4.])
    """
    return F.cross_entropy(logits_of(outputs), targets, reduction="none")


def without_mean(loss: Loss) -> Loss:
    """Return one of torch's losses without its mean over samples; another loss as it is.

    Class weights stay: each sample's term carries its own, as torch's `reduction="none"` has it.

    Raises:
        ValueError: If the loss is a sum over samples.

    Examples:
        >>> import torch
        >>> without_mean(F.mse_loss)(torch.ones(2, 1), torch.zeros(2, 1))
        tensor([[1.],
                [1.]])
    """
    reduction = getattr(loss, "reduction", None) if isinstance(loss, nn.Module) else None
    if reduction == "sum":
        raise ValueError("`loss`: expected a mean or one value per sample, got reduction 'sum'")
    if reduction == "mean":
        by_sample: Any = copy.copy(loss)
        by_sample.reduction = "none"
        return by_sample  # type: ignore[no-any-return]  # a loss, since `loss` is one

    function: Any = loss
    is_from_torch = getattr(function, "__module__", "") == F.__name__
    if is_from_torch and "reduction" in inspect.signature(function).parameters:
        return partial(function, reduction="none")
    return loss


def has_class_weights(loss: Any) -> bool:
    """Tell whether a loss divides by class weights, so that its mean is not a mean over samples.

    Examples:
        >>> import torch
        >>> has_class_weights(nn.CrossEntropyLoss(torch.ones(3))), has_class_weights(F.nll_loss)
        (True, False)
    """
    return class_weights_of(loss) is not None


def class_weights_of(loss: Any) -> Tensor | None:
    """Return the weights of classes that one of torch's means divides by; None if there are none.

    Examples:
        >>> import torch
        >>> class_weights_of(partial(F.nll_loss, weight=torch.ones(2)))
        tensor([1., 1.])
    """
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.weight if loss.reduction == "mean" else None

    if isinstance(loss, partial) and loss.func in (F.cross_entropy, F.nll_loss):
        return None if "reduction" in loss.keywords else loss.keywords.get("weight")
    return None


def ignore_index_of(loss: Any) -> int | None:
    """Return the target that a loss leaves out of its mean; None if it is not one of torch's.

    Examples:
        >>> ignore_index_of(F.cross_entropy), ignore_index_of(nn.CrossEntropyLoss(ignore_index=0))
        (-100, 0)
    """
    if loss is cross_entropy_per_sample:
        return -100
    if isinstance(loss, nn.Module):
        return getattr(loss, "ignore_index", None)

    function = getattr(loss, "func", loss)
    if function not in (F.cross_entropy, F.nll_loss):
        return None
    return int(getattr(loss, "keywords", {}).get("ignore_index", -100))
