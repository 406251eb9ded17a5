"""Labels of causal language models: each belongs to the position before it."""

from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import IGNORED_TARGET, predicts_next_token, shift_labels


def move_ahead(
    y: Any, root: nn.Module | None, input_ids: Tensor | None, shift: bool | None, argument: str
) -> Any:
    """Give each position the label after it, as the loss of a causal language model does.

    Args:
        y: Targets of any kind; only whole numbers `(sample, position)` are labels of tokens.
        root: The model.
        input_ids: What it read in the latest pass, as far as that is known.
        shift: Whether to move; None asks the model.
        argument: What the user calls `y`.

    Raises:
        TypeError: If `shift` is not True, False or None.
        ValueError: If labels that nobody said anything about have been moved already.
    """
    if shift not in (True, False, None):
        raise TypeError(f"`shift`: expected True, False or None, got {shift!r}")

    is_of_tokens = isinstance(y, Tensor) and y.dim() == 2 and not y.is_floating_point()
    if shift is False or not is_of_tokens or y.shape[1] < 2:
        return y
    if shift is None and (root is None or not predicts_next_token(root)):
        return y

    if shift is None and are_next_tokens(y, input_ids):
        raise ValueError(
            f"`{argument}`: the model is a causal language model, for which the target of a "
            "position is the label after it, but these labels are shifted already; pass labels as "
            "the model's own loss takes them, or shift=False"
        )
    return shift_labels(y)


def are_next_tokens(y: Tensor, input_ids: Tensor | None) -> bool:
    """Tell whether targets are seen to be the tokens that follow those read."""
    if input_ids is None or not _can_compare(y, input_ids):
        return False
    return _are_equal(y[:, :-1], input_ids[:, 1:]) and not _are_equal(y, input_ids)


def token_ids_of(inputs: dict[str, Any]) -> Tensor | None:
    """Find the tokens among the arguments of a model."""
    ids = inputs.get("input_ids")
    return ids if isinstance(ids, Tensor) and ids.dim() == 2 else None


def _can_compare(y: Tensor, input_ids: Tensor) -> bool:
    # On an accelerator a look would wait for the device; under vmap there are no values.
    is_at_hand = y.device.type == input_ids.device.type == "cpu"
    has_values = torch._C._functorch.peek_interpreter_stack() is None
    return is_at_hand and has_values and y.shape == input_ids.shape and y.shape[1] > 1


def _are_equal(targets: Tensor, tokens: Tensor) -> bool:
    is_counted = targets != IGNORED_TARGET
    return bool(is_counted.any()) and bool((targets == tokens)[is_counted].all())
