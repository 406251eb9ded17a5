"""Which sequence a layer runs on, where a model has one to read and another to write.

An encoder-decoder reads a text (an image, sound) and says something of each position of another
text; so does a language model that sees, in front of its own text. Positions of the one are not
those of the other, though there may be as many.
"""

import inspect
from collections.abc import Collection
from typing import Literal

from torch import nn

from resonance_toolkit import Blocks

# Arguments that only models with a decoder beside an encoder have: transformers', and torch's own.
_DECODER_INPUTS = frozenset({"decoder_input_ids", "decoder_inputs_embeds", "tgt"})

# Arguments of models that see or hear, in front of a text.
_PERCEPTIONS = frozenset(
    {"pixel_values", "pixel_values_videos", "flattened_patches", "input_features", "input_values"}
)

# How the names of modules begin that run on what is read, and on what is written.
_READERS = ("encoder", "enc_", "vision", "visual", "image", "audio", "speech")
_WRITERS = ("decoder", "dec_", "language_model", "text_model")


def has_two_sequences(root: nn.Module) -> bool:
    """Tell by the arguments of a model whether it reads one sequence and writes another."""
    names = forward_parameters(root)
    return not _DECODER_INPUTS.isdisjoint(names) or _reads_and_sees(names)


def forward_parameters(module: nn.Module) -> list[str]:
    """Name the arguments of a module's forward; none if that has no signature."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # what is not written in Python may have no signature
        return []


def mask_of(layer: str, root: nn.Module) -> Literal["model", "decoder", "none"]:
    """Say whose padding mask in the model's call is one of a layer's positions."""
    names = forward_parameters(root)
    if not _DECODER_INPUTS.isdisjoint(names):
        return "decoder" if _first_side(layer) in _WRITERS else "model"
    return "none" if _reads_and_sees(names) and is_of_encoder(layer) else "model"


def is_of_encoder(layer: str) -> bool:
    """Tell by its name whether a layer runs on what is read, of a model with two sequences."""
    return _first_side(layer) in _READERS


def without_encoder(blocks: Blocks, root: nn.Module) -> Blocks:
    """Leave out the blocks on what is read; all stay if there are no others."""
    if not has_two_sequences(root):
        return blocks
    decoder_blocks = [name for name in blocks if not is_of_encoder(name)]
    return keep_blocks(blocks, decoder_blocks, "whose positions are those of the output")


def keep_blocks(blocks: Blocks, names: Collection[str], reason: str) -> Blocks:
    """Keep some blocks, with the reason; all of them if there are none to be kept, or left out."""
    if not names or len(names) == len(blocks):
        return blocks
    kept_blocks = {name: module for name, module in blocks.items() if name in names}
    return Blocks(kept_blocks, f"{blocks.reason}; of these the {len(kept_blocks)} {reason}")


def _reads_and_sees(names: Collection[str]) -> bool:
    return "input_ids" in names and not _PERCEPTIONS.isdisjoint(names)


def _first_side(layer: str) -> str:
    # The outermost name decides: a decoder may be built of what was an encoder's.
    for part in layer.split("."):
        for beginning in (*_READERS, *_WRITERS):
            if part.startswith(beginning):
                return beginning
    return ""
