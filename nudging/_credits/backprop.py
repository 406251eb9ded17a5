from typing import overload

from torch import Tensor

from nudging._credits.credit import Credit
from nudging._replay.state import State


@overload
def backprop() -> Credit: ...


@overload
def backprop(state: State) -> dict[str, Tensor]: ...


def backprop(state: State | None = None) -> Credit | dict[str, Tensor]:
    """The credit that all others are compared with: the gradient of each sample's loss.

    Call it to get the credit: `nudging.nudge(model, data, nudging.backprop(), "blocks.*")`. It has
    no settings, so `nudging.backprop` without the call works as well.

    Args:
        state: A state made by `observe`; verbs pass it. Leave it out to get the credit.

    Returns:
        The credit; or, for a state, one tensor per block, of the shape of its output.

    Examples:
        >>> import torch
        >>> from nudging import observe
        >>> model = torch.nn.Sequential(torch.nn.Identity())
        >>> half_square = lambda outputs, targets: (outputs - targets).square().sum(1) / 2
        >>> state = observe(model, torch.ones(1, 2), torch.zeros(1, 2), "0", loss=half_square)
        >>> backprop()(state)["0"]  # outputs - targets
        tensor([[1., 1.]])
    """
    return backprop if state is None else state.gradient()
