"""What stays the same from batch to batch: the model, its blocks, the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from nudging._replay.losses import make_loss_per_sample
from resonance_toolkit import Loss, check_module, find_layers, unwrap


@dataclass(frozen=True, eq=False)
class Setup:
    """A model whose blocks are looked at, and how its outputs are judged.

    Attributes:
        model: Without wrappers.
        modules: The blocks, by name.
        loss: `(outputs, targets)` to one loss per sample.
        tensors: Parameters and buffers to run with, in another precision; None for its own.
    """

    model: nn.Module
    modules: Mapping[str, nn.Module]
    loss: Loss
    tensors: Mapping[str, Tensor] | None = None


def make_setup(model: nn.Module, blocks: str | Sequence[str], loss: Loss | None) -> Setup:
    """Check what a user gives: a model, names or patterns of its blocks, and a loss."""
    check_module(model)

    # In the model as it was given, since names may be spelled with a wrapper's prefix.
    modules = find_layers(model, blocks, argument="blocks")
    return Setup(unwrap(model), modules, make_loss_per_sample(loss))
