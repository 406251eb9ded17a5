from torch import Tensor, nn

from resonance import find_layers, unwrap


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
