"""What a loss of the user's may be, and which targets torch's own losses stand for."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resonance_toolkit._base.facts import count_arguments, name_of
from resonance_toolkit._base.losses.class_targets import is_whole

# Torch computes numbers of any targets: outside of 0 and 1 they are no losses, without a minimum.
_OF_SHARES = {
    *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits),
    *(F.multilabel_soft_margin_loss, F.cross_entropy),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss, nn.CrossEntropyLoss),
}

# Distributions are often float32, and smoothed by hand: rounding may carry them a little outside.
_ROUNDING = 1e-3


def check_loss(loss: Any, *, may_call_model: bool) -> None:
    """Refuse what cannot be a loss.

    Args:
        loss: What the user gave.
        may_call_model: Whether a loss of `(model, inputs, targets)` is understood.

    Raises:
        TypeError: If it cannot be called, is a class, or wants other arguments.

    Examples:
        >>> check_loss(nn.CrossEntropyLoss, may_call_model=True)
        Traceback (most recent call last):
        TypeError: `loss`: expected a loss, got the class CrossEntropyLoss: make one, as ...
    """
    if isinstance(loss, type):
        name = loss.__name__
        raise TypeError(f"`loss`: expected a loss, got the class {name}: make one, as {name}()")
    if not callable(loss):
        raise TypeError(
            f"`loss`: expected a callable (outputs, targets), got {type(loss).__name__}"
        )
    if not may_call_model and takes_model(loss):
        raise TypeError(
            f"`loss`: expected a callable (outputs, targets), got {name_of(loss)} with three "
            "arguments; outputs are computed again and again from inside the model, which such a "
            "loss would run from its beginning"
        )


def takes_model(loss: Any) -> bool:
    """Tell whether a loss is called as `(model, inputs, targets)`.

    Examples:
        >>> takes_model(F.mse_loss), takes_model(lambda model, x, y: model(x).sum())
        (False, True)
    """
    return count_arguments(loss) == 3


def check_shares(loss: Any, targets: Iterable[Any], argument: str = "data") -> None:
    """Refuse targets outside of 0 and 1 under torch's losses of labels and distributions.

    Args:
        loss: A loss of the user's.
        targets: Those of every batch. Whole numbers are classes, or for torch to refuse.
        argument: What the user calls them.

    Raises:
        ValueError: If there are some.

    Examples:
        >>> check_shares(nn.BCEWithLogitsLoss(), [torch.tensor([0.0, 1.0])])
        >>> check_shares(F.cross_entropy, [torch.tensor([[-0.5, 2.0]])])
        Traceback (most recent call last):
        ValueError: `data`: expected targets from 0 to 1 for cross_entropy, got -0.5 to 2; ...
    """
    if getattr(loss, "func", loss) not in _OF_SHARES and type(loss) not in _OF_SHARES:
        return

    pieces = [piece for piece in targets if isinstance(piece, Tensor) and piece.numel()]
    extremes = [torch.stack(piece.detach().aminmax()) for piece in pieces if not is_whole(piece)]
    if not extremes:
        return

    # All pieces in one go: on an accelerator each look waits for it.
    device = extremes[0].device
    of_pieces = torch.stack([extreme.to(device) for extreme in extremes])
    low, high = torch.stack([of_pieces[:, 0].amin(), of_pieces[:, 1].amax()]).tolist()
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise ValueError(
            f"`{argument}`: expected targets from 0 to 1 for {name_of(loss)}, got {low:.4g} to "
            f"{high:.4g}; logits are no labels, and real numbers need another loss, such as "
            "torch.nn.functional.mse_loss"
        )
