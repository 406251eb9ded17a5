import copy

import torch
from torch import Tensor

from nudging._replay.state import State


def output_error(state: State) -> Tensor:
    """The gradient of each sample's own loss with respect to the outputs: for cross-entropy,
    softmax minus one-hot. There is no 1/N of a batch mean in it."""
    named = hasattr(state.outputs, "logits")
    outputs = state.outputs.logits if named else state.outputs
    if not isinstance(outputs, Tensor) or outputs.dim() < 2:
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"`model`: expected outputs (sample, class), got {kind}")
    with torch.enable_grad():
        outputs = given = outputs.detach().requires_grad_()
        if named:  # the loss gets what the model returns
            given = copy.copy(state.outputs)
            given.logits = outputs
        (error,) = torch.autograd.grad(state.losses(given).sum(), outputs)
    return error
