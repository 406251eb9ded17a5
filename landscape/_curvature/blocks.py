"""Which diagonal blocks of a curvature matrix are looked at: all of it, or one for each layer."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from landscape._curvature.matrix import Block
from landscape._directions.parameters import Params
from resonance_toolkit import find_layers

By = Literal["layer"] | str | Sequence[str]

# What the block of all parameters is called, where there is no other.
WHOLE = ""


def blocks_of(model: nn.Module, params: Params, by: By | None) -> dict[str, Block]:
    """Positions of the parameters of each block, by the name of its layer.

    Args:
        model: Whose layers they are.
        params: The parameters that the matrix is about.
        by: None for one block of all; `"layer"` for one for each module that owns parameters;
            names or patterns of modules for one each, with all that is inside them; those among
            the matches of a pattern that have no parameters are left out.

    Raises:
        ValueError: If a pattern matches nothing, or no module with such parameters, or a module
            that is named has none.
    """
    if by is None:
        return {WHOLE: range(len(params))}

    if by == "layer":
        owners: dict[str, list[int]] = {}
        for position, name in enumerate(params):
            owners.setdefault(name.rpartition(".")[0], []).append(position)
        return dict(owners)

    blocks: dict[str, Block] = {}
    layers = list(find_layers(model, by, argument="by"))
    named_layers = {by} if isinstance(by, str) else set(by)
    for layer in layers:
        positions = [i for i, name in enumerate(params) if name.startswith(f"{layer}.")]
        if positions:
            blocks[layer] = positions

        # A pattern may match activations among the layers: these are left out.
        elif layer in named_layers or (layer == layers[-1] and not blocks):
            raise ValueError(
                f"`by` at {layer!r}: expected a layer with parameters that `over` covers, got one "
                "without; by='layer' takes all that have some"
            )
    return blocks
