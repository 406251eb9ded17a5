"""Which positions of a batch are real, and which only pad it to a common length."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit._base.data.language_models import IGNORED_TARGET
from resonance_toolkit._base.find_layers import unwrap

# Keywords that mark positions to attend to (transformers), and positions to leave out (torch).
_MASKS_OF_POSITIONS = ("attention_mask", "input_mask")
_MASKS_OF_PADDING = ("src_key_padding_mask", "key_padding_mask", "padding_mask")

# The same of the second sequence, where a model has a decoder beside its encoder.
_DECODER_MASKS_OF_POSITIONS = ("decoder_attention_mask",)
_DECODER_MASKS_OF_PADDING = ("tgt_key_padding_mask",)

# Keywords that carry the decoder's own sequence (transformers, torch).
_DECODER_INPUTS = frozenset({"decoder_input_ids", "decoder_inputs_embeds", "tgt"})


def name_inputs(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Name what a model is called with by the parameters of its `forward`.

    Args:
        model: Wrapped or not.
        inputs: As `call_model` takes them. What fits no name of its own is left out.

    Examples:
        >>> list(name_inputs(nn.Bilinear(1, 1, 1), (0, 1)))
        ['input1', 'input2']
    """
    if isinstance(inputs, Mapping):
        return dict(inputs)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)

    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(unwrap(model).forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in by_position]
    return dict(zip(names, arguments, strict=False))


def positions_that_count(
    inputs: Any, *, of_decoder: bool = False, model: nn.Module | None = None
) -> Tensor | None:
    """Read the padding mask in a model's inputs.

    Args:
        inputs: As `call_model` takes them. Keywords carry a mask, and so do positional arguments,
            if the model is known. An `attention_mask` may be bool, zeros and ones, or what is added
            to attention logits; of more than two axes, it marks as padding what nothing attends to.
        of_decoder: Read the mask of what an encoder-decoder feeds its decoder instead.
        model: Whose inputs they are: its `forward` names them.

    Returns:
        True where a position is real, `(sample, position)`; None if nothing says so.

    Examples:
        >>> import torch
        >>> positions_that_count({"attention_mask": torch.tensor([[1, 1, 0]])})
        tensor([[ True,  True, False]])
    """
    if model is not None:
        inputs = name_inputs(model, inputs)
    if not isinstance(inputs, Mapping):
        return None

    masks_of_positions = _DECODER_MASKS_OF_POSITIONS if of_decoder else _MASKS_OF_POSITIONS
    masks_of_padding = _DECODER_MASKS_OF_PADDING if of_decoder else _MASKS_OF_PADDING

    for name in masks_of_positions:
        if _is_mask(inputs.get(name)):
            return _attended_positions(inputs[name])
    for name in masks_of_padding:
        if _is_mask(inputs.get(name)) and inputs[name].dim() == 2:
            mask = inputs[name]
            return _is_open(mask) if mask.is_floating_point() else mask == 0
    return None


def feeds_decoder(named_inputs: Mapping[str, Any]) -> bool:
    """Tell whether a call brings a decoder its own sequence, beside what an encoder reads.

    Examples:
        >>> feeds_decoder({"input_ids": 0, "decoder_input_ids": 0})
        True
    """
    return not _DECODER_INPUTS.isdisjoint(named_inputs)


def positions_up_to_last_target(targets: Any) -> Tensor | None:
    """Tell what is no padding in a decoder, which rarely gets a mask: it looks back only.

    Args:
        targets: Of each position, `(sample, position)`.

    Returns:
        True up to the last target that counts, `(sample, position)`; None for other targets.

    Examples:
        >>> import torch
        >>> positions_up_to_last_target(torch.tensor([[5, -100, 7, -100]]))
        tensor([[ True,  True,  True, False]])
    """
    if not isinstance(targets, Tensor) or targets.dim() != 2 or targets.is_floating_point():
        return None
    counts = (targets != IGNORED_TARGET).long()
    return counts.flip(1).cumsum(1).flip(1) > 0


def _is_mask(value: Any) -> bool:
    # Of samples and positions; of samples, queries and keys; and with heads between.
    return isinstance(value, Tensor) and value.dim() in (2, 3, 4) and value.numel() > 0


def _attended_positions(mask: Tensor) -> Tensor:
    """Return what a mask of attention says of positions, without a look at its values.

    Everything stays on the device, and a compiled forward in one graph.
    """
    is_attended = mask != 0
    if mask.is_floating_point():
        # Either zeros and ones, or what is added to attention logits: zeros and huge negatives.
        is_added = (mask <= 0).all()
        is_attended = torch.where(is_added, _is_open(mask), is_attended)
    if mask.dim() == 2:
        return is_attended

    # What no query of any head attends to. A position that attends to itself alone may be padding,
    # but also the last of several texts that are packed into one row.
    return is_attended.flatten(1, -2).any(1)


def _is_open(added_mask: Tensor) -> Tensor:
    # The least that is in use for "no" is -10000; biases by distance stay far above.
    return added_mask > -5000
