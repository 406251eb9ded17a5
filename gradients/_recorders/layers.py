import torch
from torch import Tensor, nn

from resonance_toolkit import find_layers, unwrap


def parameters_by_layer(model: nn.Module) -> tuple[list[Tensor], list[str], list[int]]:
    """List a model's parameters, the layers that own them, and each one's layer.

    A parameter that belongs to the model itself (a class token) is a layer of its own name.
    A parameter under two names counts once, under the first.
    """
    inner = unwrap(model)
    modules = find_layers(inner, "**") if any(inner.children()) else {}
    parameters: list[Tensor] = []
    layers: list[str] = []
    owners: list[int] = []
    seen: set[int] = set()
    for layer, module in [("", inner), *modules.items()]:
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            label = layer or name
            if label not in layers:
                layers.append(label)
            parameters.append(parameter)
            owners.append(layers.index(label))
    if not parameters:
        raise ValueError(f"`model`: expected a module with parameters, got {type(inner).__name__}")
    return parameters, layers, owners


def sizes_of(parameters: list[Tensor], owners: list[int]) -> list[int]:
    """Count the parameters of each layer."""
    sizes = [0] * (max(owners) + 1)
    for parameter, owner in zip(parameters, owners, strict=True):
        sizes[owner] += parameter.numel()
    return sizes


def same_places(
    model: nn.Module, parameters: list[Tensor], layers: list[str], owners: list[int]
) -> list[Tensor]:
    """List the parameters that a model has now where it had `parameters`.

    Raises:
        ValueError: If there are more or fewer, or of other shapes.
    """
    present = list(model.parameters())
    if {id(p) for p in present} == {id(p) for p in parameters}:
        return parameters
    new, new_layers, new_owners = parameters_by_layer(model)
    before = [(layers[i], p.shape) for i, p in zip(owners, parameters, strict=True)]
    now = [(new_layers[i], p.shape) for i, p in zip(new_owners, new, strict=True)]
    if now != before:
        odd = [layer for layer, _ in (*before, *now) if not _alike(layer, before, now)]
        raise ValueError(
            "`model`: expected the parameters that it had when the trace was made, got others in "
            f"{', '.join(dict.fromkeys(odd))}; make a new trace"
        )
    return new


def _alike(layer: str, *states: list[tuple[str, torch.Size]]) -> bool:
    one, other = ([shape for name, shape in state if name == layer] for state in states)
    return one == other
