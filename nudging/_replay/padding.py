"""Positions of a block's output that only pad a sample to a common length, and so do not count.

A padded position belongs to no sample: it is not nudged, no random direction points along it, and
neither norms nor means over features see it. A text then has the same numbers whatever it was
padded to.
"""

from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import IGNORED_TARGET, name_inputs, positions_that_count

# Keywords that carry the decoder's own sequence (transformers, torch).
_DECODER_INPUTS = {"decoder_input_ids", "decoder_inputs_embeds", "tgt"}


def find_positions(
    model: nn.Module, inputs: Any, targets: Any, block: str, hidden: Tensor
) -> Tensor | None:
    """Tell which positions of a block's output count, `(sample, position)`; None if all do.

    Args:
        model: Whose `forward` names what it was called with.
        inputs: What the model was called with.
        targets: What its outputs are compared with.
        block: Name of the block.
        hidden: Its output. Only `(sample, position, feature)` has positions of the inputs.
    """
    named_inputs = name_inputs(model, inputs)

    # By name, not by length: both sequences of an encoder-decoder may be equally long.
    is_decoder = "decoder" in block.split(".") and bool(_DECODER_INPUTS & named_inputs.keys())
    counts = positions_that_count(named_inputs, of_decoder=is_decoder)
    if is_decoder and counts is None:
        counts = _positions_up_to_last_target(targets)

    if counts is None or hidden.dim() != 3 or hidden.shape[:2] != counts.shape:
        return None
    return None if bool(counts.all()) else counts.to(hidden.device)


def zero_padding(tensor: Tensor, positions: Tensor | None) -> Tensor:
    """Return `(..., sample, position, feature)` with zeros at positions that do not count."""
    if positions is None:
        return tensor
    # Not a product: what stands at padded positions need not be finite.
    return torch.where(positions[:, :, None], tensor, 0)


def _positions_up_to_last_target(targets: Any) -> Tensor | None:
    """Tell what is not padding in a decoder, which rarely gets a mask: it looks back only."""
    if not isinstance(targets, Tensor) or targets.dim() != 2 or targets.is_floating_point():
        return None
    counts = (targets != IGNORED_TARGET).long()
    return counts.flip(1).cumsum(1).flip(1) > 0
