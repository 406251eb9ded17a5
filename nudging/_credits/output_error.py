"""The signal that feedback rules and bridges start from: how the outputs should change."""

import torch
from torch import Tensor

from nudging._replay.nests import replace_logits
from nudging._replay.state import State
from resonance_toolkit import logits_of


def output_error(state: State) -> Tensor:
    """Return the gradient of each sample's own loss with respect to the outputs.

    For cross-entropy that is softmax minus one-hot. There is no 1/N of a batch mean in it.
    """
    logits = logits_of(state.outputs)
    if logits.dim() < 2:
        raise ValueError(f"`model`: expected outputs (sample, class), got {tuple(logits.shape)}")

    with torch.enable_grad():
        logits = logits.detach().requires_grad_()

        # A loss of the user's expects what the model returns, not only its logits.
        outputs = replace_logits(state.outputs, logits)
        (error,) = torch.autograd.grad(state.losses(outputs).sum(), logits)
    return error
