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
    inner = unwrap(model)
    parameters: Params = dict(inner.named_parameters())
    everything = parameters | dict(inner.named_buffers())
    return {name: t for name, t in everything.items() if t.is_floating_point()}


def parameter_names(model: nn.Module) -> list[str]:
    """Names of the floating parameters, which lengths and angles are about."""
    return [name for name, p in unwrap(model).named_parameters() if p.is_floating_point()]


def read_state(state: State, like: Params, argument: str) -> Params:
    """The tensors of a model or state dict that correspond to `like`.

    Raises:
        ValueError: If one is missing or of another shape.
        TypeError: If `state` is neither.
    """
    if isinstance(state, nn.Module):
        found: Mapping[str, Any] = state_tensors(state)
    elif isinstance(state, Mapping):
        found = state
    else:
        raise TypeError(
            f"`{argument}`: expected a module or a state dict, got {type(state).__name__}"
        )
    for name, tensor in like.items():
        got = tuple(found[name].shape) if name in found else "nothing"
        if got != tuple(tensor.shape):
            raise ValueError(f"`{argument}` at {name!r}: expected {tuple(tensor.shape)}, got {got}")
    return {n: found[n].detach().to(t.device, t.dtype) for n, t in like.items()}


def difference(state: State, origin: Params, argument: str) -> Params:
    """How far a state is from `origin`, tensor by tensor."""
    there = read_state(state, origin, argument)
    return {name: there[name] - tensor.detach() for name, tensor in origin.items()}


def combine(weights: Sequence[float], directions: Sequence[Params]) -> Params:
    """A weighted sum of directions."""
    total = {name: torch.zeros_like(tensor) for name, tensor in directions[0].items()}
    for weight, direction in zip(weights, directions, strict=True):
        for name, tensor in total.items():
            tensor.add_(direction[name], alpha=weight)
    return total
