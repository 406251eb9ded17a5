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

    Made by a call, like all credits: `nudging.nudge(model, data, nudging.backprop(), "blocks.*")`.
    It has no settings, so that `nudging.backprop` without the call is the same credit.

    Args:
        state: What `observe` makes; a verb passes it. Without one, this is a factory.

    Returns:
        The credit; or, for a state, one tensor per block, like its output.

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
