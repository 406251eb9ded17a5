"""The parameters of a model, sorted by the module that owns them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradients._layer_names import layer_label
from resonance_toolkit import find_layers, unwrap


@dataclass(frozen=True)
class ParametersByLayer:
    """A model's parameters, each once, and the layers that own them."""

    parameters: list[Tensor]
    layers: list[str]  # dotted names, as in `named_modules()`
    owners: list[int]  # the layer of each parameter

    def count_by_layer(self) -> list[int]:
        """Count the weights of each layer."""
        counts = [0] * len(self.layers)
        for parameter, owner in zip(self.parameters, self.owners, strict=True):
            counts[owner] += parameter.numel()
        return counts

    def named_shapes(self) -> list[tuple[str, torch.Size]]:
        """Return the layer and the shape of each parameter."""
        pairs = zip(self.parameters, self.owners, strict=True)
        return [(self.layers[owner], parameter.shape) for parameter, owner in pairs]


def parameters_by_layer(model: nn.Module) -> ParametersByLayer:
    """Sort a model's parameters by layer.

    What the model itself owns (a class token, position embeddings) is the layer "", which is the
    root's own name. A parameter under two names counts once, under the first.

    Raises:
        ValueError: If there is none.
    """
    root = unwrap(model)
    modules = find_layers(root, "**") if any(root.children()) else {}

    parameters: list[Tensor] = []
    layers: list[str] = []
    owners: list[int] = []
    counted_ids: set[int] = set()

    for layer, module in [("", root), *modules.items()]:
        own_parameters = [
            parameter
            for parameter in module.parameters(recurse=False)
            if id(parameter) not in counted_ids
        ]
        if not own_parameters:
            continue

        counted_ids.update(map(id, own_parameters))
        parameters += own_parameters
        owners += [len(layers)] * len(own_parameters)
        layers.append(layer)

    if not parameters:
        raise ValueError(f"`model`: expected a module with parameters, got {type(root).__name__}")
    return ParametersByLayer(parameters, layers, owners)


def current_parameters(model: nn.Module, earlier: ParametersByLayer) -> ParametersByLayer:
    """Return the parameters that a model has now in the places where it had `earlier` ones.

    Raises:
        ValueError: If there are more or fewer, or of other shapes.
    """
    if {id(p) for p in model.parameters()} == {id(p) for p in earlier.parameters}:
        return earlier

    current = parameters_by_layer(model)
    old_shapes = earlier.named_shapes()
    new_shapes = current.named_shapes()
    if new_shapes == old_shapes:
        return current

    changed_layers = [
        layer_label(layer)
        for layer in dict.fromkeys(layer for layer, _ in (*old_shapes, *new_shapes))
        if _shapes_in(layer, old_shapes) != _shapes_in(layer, new_shapes)
    ]
    raise ValueError(
        "`model`: expected the parameters that it had when the trace was made, got others in "
        f"{', '.join(changed_layers)}; make a new trace"
    )


def _shapes_in(layer: str, named_shapes: list[tuple[str, torch.Size]]) -> list[torch.Size]:
    return [shape for name, shape in named_shapes if name == layer]
