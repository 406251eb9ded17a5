"""Readings of forward passes as one Dataset, with labels for its axes and layers."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from attention._layout import Layout
from attention._measure import Label
from attention._read import STATISTICS, Array, Reading
from attention._settings import Settings
from resonance_toolkit import logits_of

_AXIS_NAMES = {
    "sample": "index of the sample",
    "head": "attention head",
    "query": "attending position",
    "key": "attended position",
}


def make_dataset(
    passes: list[dict[str, Reading]],
    settings: Settings,
    attributes: Mapping[str, str | int | float],
    output: Any,
) -> xr.Dataset:
    """Lay readings out over `(sample, layer, head, query, key)`, with NaN where one is smaller.

    Args:
        passes: Of each forward pass, the readings by layer.
        settings: What was asked for.
        attributes: Of the result; the number of samples is added.
        output: What the model returned, or None to leave it out.

    Raises:
        ValueError: If the passes differ in their layers, or in their sizes.
    """
    _check_alike(passes)
    layers = list(passes[0])
    dims = ["sample", "layer", "head", "query"][: 4 if settings.has_query_axis else 3]

    values = _join([[readings[layer].values for readings in passes] for layer in layers])
    values = values if settings.has_query_axis else values[..., 0]
    variables: dict[str, xr.Variable] = {}
    for array, (name, label) in zip(values, STATISTICS.items(), strict=True):
        if name == "head_similarity":  # the same for every head
            own_dims = [dim for dim in dims if dim != "head"]
            variables[name] = xr.Variable(own_dims, array[:, :, 0].copy(), label.attributes())
        else:
            variables[name] = xr.Variable(dims, array, label.attributes())

    if settings.maps:
        weights = [[readings[layer].weights[None] for readings in passes] for layer in layers]
        weight = _join(weights)[0]
        weight = weight if settings.has_query_axis else weight[..., 0, :]
        label = Label("attention weight")
        variables["weight"] = xr.Variable([*dims, "key"], weight, label.attributes())

    n_samples = values.shape[1]
    if output is not None:
        variables["prediction"] = _prediction(output, n_samples)

    sizes = {str(dim): n for variable in variables.values() for dim, n in variable.sizes.items()}
    descriptions = [
        LayerDescription(name, reading.kind, reading.shape, reading.n_windows, reading.layout)
        for name, reading in passes[0].items()
    ]
    rows = tuple(settings.queries) if isinstance(settings.queries, list) else None
    coordinates = _coordinates(tuple(sizes.items()), tuple(descriptions), rows)
    return xr.Dataset(variables, coordinates, {**attributes, "n_samples": n_samples})


class LayerDescription(NamedTuple):
    """What the coordinates say about a layer; `shape` is `(group, head, query, key)`."""

    layer: str
    kind: str
    shape: tuple[int, int, int, int]
    n_windows: int
    layout: Layout


# Making indexes is half of making a Dataset, and while a model trains they are always the same.
@lru_cache(maxsize=16)
def _coordinates(
    sizes: tuple[tuple[str, int], ...],
    layers: tuple[LayerDescription, ...],
    rows: tuple[int, ...] | None,
) -> xr.Coordinates:
    """Label the axes, whose `sizes` these are, and every layer; `rows` are the queries' numbers."""
    positions = {dim: list(range(size)) for dim, size in sizes if dim != "layer"}
    if rows is not None:
        positions["query"] = list(rows)
    labels = {
        dim: _label(dim, _AXIS_NAMES.get(dim, _output_axis_name(dim)), values)
        for dim, values in positions.items()
    }

    grids = [layer.layout.keys or (np.nan, np.nan) for layer in layers]
    by_layer: dict[str, tuple[str, Sequence[object]]] = {
        "layer": ("attention layer", [layer.layer for layer in layers]),
        "kind": ("how the layer computes attention", [layer.kind for layer in layers]),
        "n_heads": ("number of heads", [layer.shape[1] for layer in layers]),
        "n_windows": ("number of windows", [layer.n_windows for layer in layers]),
        "n_queries": ("queries in a window", [layer.shape[2] for layer in layers]),
        "n_keys": ("keys in a window", [layer.shape[3] for layer in layers]),
        "n_prefix": ("class and register tokens", [layer.layout.prefix for layer in layers]),
        "grid_height": ("height of the grid of keys", [float(height) for height, _ in grids]),
        "grid_width": ("width of the grid of keys", [float(width) for _, width in grids]),
    }
    labels |= {name: _label("layer", text, values) for name, (text, values) in by_layer.items()}
    return xr.Coordinates(labels)


def _label(dim: str, text: str, values: Sequence[object]) -> xr.Variable:
    array = np.array(values)
    array.flags.writeable = False  # many Datasets share it
    return xr.Variable(dim, array, {"long_name": text})


def _output_axis_name(dim: str) -> str:
    return f"axis {dim.partition('_')[2] or 1} of the output"


def _prediction(output: Any, n_samples: int) -> xr.Variable:
    """Label the logits that a model returned, or else its first tensor."""
    tensor = logits_of(output)
    if tensor.dim() == 0 or len(tensor) != n_samples:  # samples come second, or there is but one
        samples_are_second = tensor.dim() > 1 and tensor.size(1) == n_samples
        tensor = tensor.transpose(0, 1) if samples_are_second else tensor[None]

    dims = ["sample", "output"]
    if tensor.dim() != 2:
        dims = ["sample", *(f"output_{axis}" for axis in range(1, tensor.dim()))]
    values = np.asarray(tensor.detach().to("cpu", torch.float64))
    return xr.Variable(dims, values, {"long_name": "output of the model"})


def _check_alike(passes: list[dict[str, Reading]]) -> None:
    first = passes[0]

    for readings in passes[1:]:
        if list(readings) != list(first):
            raise ValueError(
                "the forward passes differ in their attention layers: expected "
                f"{', '.join(first)}; got {', '.join(readings)}"
            )

        for layer in first:
            expected, actual = list(first[layer].shape[1:]), list(readings[layer].shape[1:])
            if expected != actual:
                raise ValueError(
                    f"the forward passes differ in size: layer {layer!r} has {expected} heads, "
                    f"queries and keys, then {actual}: record them one by one, and concatenate"
                )


def _join(parts: list[list[Array]]) -> Array:
    """Join `(statistic, sample, ...)` arrays of passes; stack those of layers as a third axis."""
    layers = [part[0] if len(part) == 1 else np.concatenate(part, axis=1) for part in parts]
    shapes = [layer.shape for layer in layers]
    if len(set(shapes)) == 1:
        return np.stack(layers, axis=2)

    # Each layer in the corner of the largest, with NaN around.
    largest = np.max(shapes, axis=0)
    joined = np.full((*largest[:2], len(layers), *largest[2:]), np.nan)
    for index, layer in enumerate(layers):
        corner = tuple(slice(size) for size in layer.shape)
        joined[:, :, index][corner] = layer
    return joined
