"""Call a user's loss, and say what it was given if it fails."""

from typing import Any

import torch
from torch import Tensor

from resonance_toolkit._base.data.forms import tensors_in
from resonance_toolkit._base.facts import dtype_name, name_of
from resonance_toolkit._base.losses.per_sample import Loss


class FailedLossError(RuntimeError, ValueError):
    """A loss that fails on the outputs of a model and its targets, told with both.

    Also a `RuntimeError`, as torch's own, for those who expect one.
    """


def call_loss(loss: Loss, outputs: Any, targets: Any) -> Any:
    """Call a loss as `(outputs, targets)`.

    Raises:
        ValueError: If the loss fails in torch, or reaches for what the outputs do not have.

    Examples:
        >>> call_loss(torch.nn.functional.mse_loss, torch.ones(2), torch.zeros(2))
        tensor(1.)
    """
    try:
        return loss(outputs, targets)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError, AttributeError, KeyError, ValueError) as error:
        # A loss that says itself what does not fit is the better judge.
        if isinstance(error, ValueError) and not _is_raised_by_torch(error):
            raise
        raise FailedLossError(_say_what_failed(loss, outputs, targets, error)) from error


def _is_raised_by_torch(error: Exception) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = "" if traceback is None else traceback.tb_frame.f_globals.get("__name__", "")
    return str(module).partition(".")[0] == "torch"


def _say_what_failed(loss: Loss, outputs: Any, targets: Any, error: Exception) -> str:
    cause = str(error).splitlines()[0] if str(error) else type(error).__name__
    cure = "a loss gets what the model returns, and the targets as they are"
    if not isinstance(outputs, Tensor):
        name = name_of(loss)
        cure = (
            f"the model returns no tensor: take one out, such as by lambda outputs, targets: "
            f"{name}(resonance.logits_of(outputs), targets)"
        )
    return (
        f"`loss`: {name_of(loss)} fails on outputs {_describe_nest(outputs)} and targets "
        f"{_describe_nest(targets)}: {cause}; {cure}"
    )


def _describe_nest(nest: Any) -> str:
    """A tensor by shape and dtype; anything else by type, with the tensors inside."""
    if isinstance(nest, Tensor):
        return f"{tuple(nest.shape)} of {dtype_name(nest.dtype)}"

    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(nest))
    return f"{type(nest).__name__} of {shapes or 'no tensors'}"
