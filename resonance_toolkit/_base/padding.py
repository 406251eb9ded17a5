"""Which positions of a batch are real, and which only pad it to a common length."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Keywords that mark positions to attend to (transformers), and positions to leave out (torch).
_MASKS_OF_POSITIONS = ("attention_mask", "input_mask")
_MASKS_OF_PADDING = ("src_key_padding_mask", "key_padding_mask", "padding_mask")

# The same of the second sequence, where a model has a decoder beside its encoder.
_DECODER_MASKS_OF_POSITIONS = ("decoder_attention_mask",)
_DECODER_MASKS_OF_PADDING = ("tgt_key_padding_mask",)


def positions_that_count(inputs: Any, *, of_decoder: bool = False) -> Tensor | None:
    """Read the padding mask in a model's keyword inputs.

    Args:
        inputs: As `call_model` takes them. Only keywords can carry a mask.
        of_decoder: Read the mask of what an encoder-decoder feeds its decoder instead.

    Returns:
        True where a position is real, `(sample, position)`; None if nothing says so.

    Examples:
        >>> import torch
        >>> positions_that_count({"attention_mask": torch.tensor([[1, 1, 0]])})
        tensor([[ True,  True, False]])
    """
    if not isinstance(inputs, Mapping):
        return None

    masks_of_positions = _DECODER_MASKS_OF_POSITIONS if of_decoder else _MASKS_OF_POSITIONS
    masks_of_padding = _DECODER_MASKS_OF_PADDING if of_decoder else _MASKS_OF_PADDING

    for name in masks_of_positions:
        if _is_mask(inputs.get(name)):
            return inputs[name] != 0  # type: ignore[no-any-return]  # a tensor, as checked
    for name in masks_of_padding:
        if _is_mask(inputs.get(name)):
            return inputs[name] == 0  # type: ignore[no-any-return]  # a tensor, as checked
    return None


def _is_mask(value: Any) -> bool:
    # A mask of more axes says who attends to whom, not what is padding; numbers that are added to
    # attention logits are floating.
    return isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point()
