from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nudging._credits.credit import credit_factory, describe_credit
from nudging._replay.state import State


@dataclass(frozen=True, repr=False)
class Auxiliary:
    """The gradient of a loss with respect to the blocks' outputs; made by `auxiliary`."""

    loss: Callable[[Any, Any], Tensor]

    def __repr__(self) -> str:
        return describe_credit(self)

    def __call__(self, state: State) -> dict[str, Tensor]:
        """Run the whole model once more, and differentiate the loss."""

        def total(outputs: Any) -> Tensor:
            value = self.loss(outputs, state.targets)
            # Credits are gradients of each sample's own loss: a mean gets its 1/N back.
            return value.sum() if value.dim() else value * len(state)

        return state.differentiate(total, whole=True)


@credit_factory
def auxiliary(loss: Callable[[Any, Any], Tensor]) -> Auxiliary:
    """The gradient of any auxiliary loss with respect to the blocks' outputs, as a credit.

    If the loss does not depend on a block, its credit is zero. For the signal of a probe, pass
    `auxiliary(lambda outputs, targets: probe.loss(targets))`, and call the verb inside `with
    probe.listening():`, because the model runs in eval mode.

    Args:
        loss: A function of the `(outputs, targets)` of the latest forward pass. It returns one
            number, understood as a mean over the batch, or one number per sample.

    Raises:
        TypeError: If the loss cannot be called.

    Examples:
        >>> import torch
        >>> from nudging import observe
        >>> model = torch.nn.Linear(2, 2)
        >>> x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
        >>> state = observe(torch.nn.Sequential(model), x, y, "0")
        >>> auxiliary(lambda outputs, targets: outputs[:, 0].mean())(state)["0"]
        tensor([[1., 0.],
                [1., 0.],
                [1., 0.]])
    """
    if not callable(loss):
        kind = type(loss).__name__
        raise TypeError(f"`loss`: expected a callable (outputs, targets), got {kind}")
    return Auxiliary(loss)
