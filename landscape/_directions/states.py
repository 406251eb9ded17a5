"""Models and checkpoints as points in parameter space."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from landscape._directions.parameters import Params
from resonance_toolkit import unwrap

State = nn.Module | Mapping[str, Tensor]


def state_tensors(model: nn.Module) -> Params:
    """Every floating parameter and buffer of a model, each once, by name."""
    inner_model = unwrap(model)
    parameters: Params = dict(inner_model.named_parameters())
    tensors = parameters | dict(inner_model.named_buffers())
    return {name: t for name, t in tensors.items() if t.is_floating_point()}


def parameter_names(model: nn.Module) -> list[str]:
    """Names of the floating parameters, which lengths and angles are about."""
    return [name for name, p in unwrap(model).named_parameters() if p.is_floating_point()]


def read_state(state: State, template: Params, argument: str) -> Params:
    """The tensors of a model or state dict that correspond to those of `template`.

    Args:
        state: What the user gave.
        template: Tensors whose names, shapes, types and devices are taken over.
        argument: The name of the user's argument, for the error.

    Raises:
        ValueError: If one is missing or of another shape.
        TypeError: If `state` is neither.
    """
    if isinstance(state, nn.Module):
        tensors: Mapping[str, Any] = state_tensors(state)
    elif isinstance(state, Mapping):
        tensors = state
    else:
        raise TypeError(
            f"`{argument}`: expected a module or a state dict, got {type(state).__name__}"
        )

    for name, tensor in template.items():
        expected = tuple(tensor.shape)
        actual = tuple(tensors[name].shape) if name in tensors else "nothing"
        if actual != expected:
            raise ValueError(f"`{argument}` at {name!r}: expected {expected}, got {actual}")

    return {name: tensors[name].detach().to(t.device, t.dtype) for name, t in template.items()}


def difference(state: State, origin: Params, argument: str) -> Params:
    """How far a state is from `origin`, tensor by tensor."""
    end = read_state(state, origin, argument)
    return {name: end[name] - tensor.detach() for name, tensor in origin.items()}


def combine(weights: Sequence[float], directions: Sequence[Params]) -> Params:
    """A weighted sum of directions."""
    total = {name: torch.zeros_like(tensor) for name, tensor in directions[0].items()}
    for weight, direction in zip(weights, directions, strict=True):
        for name, tensor in total.items():
            tensor.add_(direction[name], alpha=weight)
    return total
