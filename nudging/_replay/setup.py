"""What stays the same from batch to batch: the model, its blocks, the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from nudging._replay.losses import make_loss_per_sample
from resonance_toolkit import Loss, check_module, find_layers, is_compiled, unwrap


@dataclass(frozen=True, eq=False)
class Setup:
    """A model whose blocks are looked at, and how its outputs are judged.

    Attributes:
        model: Without wrappers.
        modules: The blocks, by name.
        loss: `(outputs, targets)` to one loss per sample.
        has_compiled_parts: Whether the model or a module of it runs compiled code.
        tensors: Parameters and buffers to run with, in another precision; None for its own.
    """

    model: nn.Module
    modules: Mapping[str, nn.Module]
    loss: Loss
    has_compiled_parts: bool
    tensors: Mapping[str, Tensor] | None = None


def make_setup(model: nn.Module, blocks: str | Sequence[str], loss: Loss | None) -> Setup:
    """Check what a user gives: a model, names or patterns of its blocks, and a loss."""
    check_module(model)

    # In the model as it was given, since names may be spelled with a wrapper's prefix.
    modules = find_layers(model, blocks, argument="blocks")
    loss_per_sample = make_loss_per_sample(loss)

    # Asked once: in a model of many small modules it would cost a part of every pass.
    inner_model = unwrap(model)
    has_compiled_parts = any(is_compiled(module) for module in inner_model.modules())
    return Setup(inner_model, modules, loss_per_sample, has_compiled_parts)
