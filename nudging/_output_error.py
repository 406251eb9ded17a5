import torch
from torch import Tensor

from nudging._state import State


def output_error(state: State) -> Tensor:
    """The gradient of each sample's own loss with respect to the outputs: for cross-entropy,
    softmax minus one-hot. There is no 1/N of a batch mean in it."""
    outputs = getattr(state.outputs, "logits", state.outputs)
    if not isinstance(outputs, Tensor) or outputs.dim() < 2:
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"`model`: expected outputs (sample, class), got {kind}")
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        (error,) = torch.autograd.grad(state.losses(outputs).sum(), outputs)
    return error
