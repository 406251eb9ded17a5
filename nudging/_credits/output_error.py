"""The signal that feedback rules and bridges start from: how the outputs should change."""

import copy

import torch
from torch import Tensor

from nudging._replay.state import State


def output_error(state: State) -> Tensor:
    """Return the gradient of each sample's own loss with respect to the outputs.

    For cross-entropy that is softmax minus one-hot. There is no 1/N of a batch mean in it.
    """
    has_logits = hasattr(state.outputs, "logits")
    logits = state.outputs.logits if has_logits else state.outputs
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        kind = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"`model`: expected outputs (sample, class), got {kind}")

    with torch.enable_grad():
        logits = logits.detach().requires_grad_()

        # A loss of the user's expects what the model returns, not only its logits.
        outputs = logits
        if has_logits:
            outputs = copy.copy(state.outputs)
            outputs.logits = logits

        (error,) = torch.autograd.grad(state.losses(outputs).sum(), logits)
    return error
