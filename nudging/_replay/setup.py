"""What stays the same from batch to batch: the model, its blocks, the loss."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from resonance_toolkit import (
    Blocks,
    Loss,
    check_module,
    devices_of,
    find_blocks,
    find_layers,
    is_compiled,
    unwrap,
)

# Why these blocks, in the attributes of a result, where the user chose.
_NAMED_BY_USER = "named in the call"

# How many of the blocks that were left out an attribute lists.
_LISTED_NAMES = 5


@dataclass(frozen=True, eq=False)
class Setup:
    """A model whose blocks are looked at, and how its outputs are judged.

    Attributes:
        model: Without wrappers.
        modules: The blocks, by name, and why these.
        loss: `(outputs, targets)` to one loss per sample.
        has_compiled_parts: Whether the model or a module of it runs compiled code.
        encoders: Those of torch with blocks inside, which may pass nested tensors from one to the
            next.
        may_leave_out: Whether blocks that cannot be nudged are left out, not refused.
        devices: Where the model is.
        tensors: Parameters and buffers to run with, in another precision; None for its own.
    """

    model: nn.Module
    modules: Blocks
    loss: Loss
    has_compiled_parts: bool
    encoders: tuple[nn.Module, ...] = ()
    may_leave_out: bool = False
    devices: Set[torch.device] = frozenset()
    tensors: Mapping[str, Tensor] | None = None

    def keep_blocks(self, names: Sequence[str]) -> "Setup":
        """Return the same with only these blocks, for good."""
        if len(names) == len(self.modules):
            return self if not self.may_leave_out else replace(self, may_leave_out=False)

        dropped_names = [name for name in self.modules if name not in names]
        listing = ", ".join(dropped_names[:_LISTED_NAMES])
        if len(dropped_names) > _LISTED_NAMES:
            listing += ", ..."

        reason = (
            f"{self.modules.reason}; without {listing}, which do not give each sample one output"
        )
        kept_modules = {name: module for name, module in self.modules.items() if name in names}
        return replace(self, modules=Blocks(kept_modules, reason), may_leave_out=False)


def choose_blocks(model: nn.Module, blocks: str | Sequence[str] | None) -> Blocks:
    """Return the blocks that a user names; by default the repeated ones that a model has."""
    check_module(model)
    if blocks is None:
        return find_blocks(model)

    # In the model as it was given, since names may be spelled with a wrapper's prefix.
    return Blocks(find_layers(model, blocks, argument="blocks"), _NAMED_BY_USER)


def make_setup(model: nn.Module, modules: Blocks, loss: Loss) -> Setup:
    """Put together a model, blocks of it, and a loss with one value per sample."""
    # Asked once: in a model of many small modules it would cost a part of every pass.
    inner_model = unwrap(model)
    has_compiled_parts = any(is_compiled(module) for module in inner_model.modules())
    may_leave_out = modules.reason != _NAMED_BY_USER
    return Setup(
        inner_model,
        modules,
        loss,
        has_compiled_parts,
        _encoders_of(inner_model, modules),
        may_leave_out,
        devices_of(inner_model),
    )


def _encoders_of(model: nn.Module, blocks: Blocks) -> tuple[nn.Module, ...]:
    encoders = (module for module in model.modules() if isinstance(module, nn.TransformerEncoder))
    inside = set(blocks.values())
    return tuple(encoder for encoder in encoders if inside & set(encoder.layers.modules()))
