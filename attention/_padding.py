"""Which queries of a layer are real, where the call of the model says which positions only pad."""

from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor, nn

from attention._call import Call
from attention._layout import Layout
from resonance_toolkit import name_inputs, positions_that_count


@dataclass(frozen=True)
class Padding:
    """The masks of one call, `(sample, position)`, True where a position is real.

    `positions`: of the model's one sequence, or of its encoder's. `decoder_positions`: of the
    decoder's, if there is an encoder, too.
    """

    positions: Tensor | None
    decoder_positions: Tensor | None
    has_decoder: bool

    def find_real_queries(self, call: Call, layer: str, layout: Layout) -> Tensor | None:
        """Tell which queries of a layer are real, `(sample, query)`; None if nothing says so.

        Keys need no such care: a mask that the layer heeds hides them, and a key that it does
        attend to belongs to its map.
        """
        n_groups, _, n_queries, n_keys = call.shape
        is_in_decoder = self.has_decoder and _has_part(layer, "decoder")
        positions = self.decoder_positions if is_in_decoder else self.positions
        if positions is None or len(positions) != n_groups:
            return None

        # Queries that are not the keys, in an encoder, are not positions: latents, class tokens.
        if n_queries != n_keys and not is_in_decoder:
            return None

        n_positions = positions.size(1)
        if n_queries == n_positions:
            return positions
        if n_queries == n_positions + layout.prefix:
            always = positions.new_ones(len(positions), layout.prefix)
            return torch.cat([always, positions], 1)
        return None


def find_padding(frame: FrameType, model: nn.Module) -> Padding | None:
    """Read the masks in the call that runs in `frame`; None if nothing is padded.

    Args:
        frame: Of `nn.Module.__call__`.
        model: Whose parts tell whether there are two sequences.
    """
    arguments = frame.f_locals.get("args", ())
    module = frame.f_locals.get("self", model)
    inputs = name_inputs(module, arguments) | frame.f_locals.get("kwargs", {})
    positions = _unless_all_real(positions_that_count(inputs))
    decoder_positions = _unless_all_real(positions_that_count(inputs, of_decoder=True))
    if positions is None and decoder_positions is None:
        return None

    names = [name for name, _ in model.named_modules()]
    has_decoder = all(any(_has_part(name, part) for name in names) for part in _TWO_PARTS)
    return Padding(positions, decoder_positions, has_decoder)


_TWO_PARTS = ("encoder", "decoder")


def _has_part(name: str, part: str) -> bool:
    return part in name.split(".")


def _unless_all_real(positions: Tensor | None) -> Tensor | None:
    return None if positions is None or bool(positions.all()) else positions
