"""Readings of forward passes as one Dataset, with labels for its axes and layers."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

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
    outputs: Sequence[Any],
) -> xr.Dataset:
    """Lay readings out over `(sample, layer, head, query, key)`, with NaN where one is smaller.

    Args:
        passes: Of each forward pass, the readings by layer.
        settings: What was asked for.
        attributes: Of the result; the number of samples is added.
        outputs: What the model returned in each pass; none to leave it out.

    Raises:
        ValueError: If the passes differ in their layers, their heads or their windows.
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
    if outputs:
        counts = [next(iter(readings.values())).n_samples for readings in passes]
        variables["prediction"] = _prediction(outputs, counts)

    sizes = {str(dim): n for variable in variables.values() for dim, n in variable.sizes.items()}
    descriptions = [
        _describe_layer(layer, [readings[layer] for readings in passes]) for layer in layers
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


def _describe_layer(layer: str, readings: Sequence[Reading]) -> LayerDescription:
    """Describe a layer by the longest of its passes, whose sizes the axes have."""
    longest = max(readings, key=lambda reading: reading.shape[2:])
    layout = longest.layout
    grids = {reading.layout.keys for reading in readings}

    # Sequences begin alike, whatever their lengths; images of several sizes share no grid.
    if any(grid is None or grid[0] > 1 for grid in grids) and len(grids) > 1:
        layout = Layout(layout.prefix, None, None)
    return LayerDescription(layer, longest.kind, longest.shape, longest.n_windows, layout)


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


def _prediction(outputs: Sequence[Any], n_samples: Sequence[int]) -> xr.Variable:
    """Label the logits that a model returned in each pass, or else its first tensors."""
    pairs = zip(outputs, n_samples, strict=True)
    tensors = [_with_samples_first(logits_of(output), count) for output, count in pairs]
    tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    dims = ["sample", "output"]
    if tensor.dim() != 2:
        dims = ["sample", *(f"output_{axis}" for axis in range(1, tensor.dim()))]
    values = np.asarray(tensor.detach().to("cpu", torch.float64))
    return xr.Variable(dims, values, {"long_name": "output of the model"})


def _with_samples_first(tensor: Tensor, n_samples: int) -> Tensor:
    if tensor.dim() and len(tensor) == n_samples:
        return tensor
    # Samples come second, or there is but one.
    samples_are_second = tensor.dim() > 1 and tensor.size(1) == n_samples
    return tensor.transpose(0, 1) if samples_are_second else tensor[None]


def _check_alike(passes: list[dict[str, Reading]]) -> None:
    first = passes[0]

    for readings in passes[1:]:
        if list(readings) != list(first):
            raise ValueError(
                "the forward passes differ in their attention layers: expected "
                f"{', '.join(first)}; got {', '.join(readings)}"
            )

        for layer in first:
            expected = [first[layer].shape[1], first[layer].n_windows]
            actual = [readings[layer].shape[1], readings[layer].n_windows]
            if expected != actual:
                raise ValueError(
                    f"the forward passes differ in form: layer {layer!r} has {expected} heads and "
                    f"windows, then {actual}: record them one by one, and concatenate"
                )


def _join(parts: list[list[Array]]) -> Array:
    """Join `(statistic, sample, ...)` arrays of passes; stack those of layers as a third axis."""
    layers = [_join_passes(part) for part in parts]
    shapes = [layer.shape for layer in layers]
    if len(set(shapes)) == 1:
        return np.stack(layers, axis=2)

    # Each layer in the corner of the largest, with NaN around.
    largest = np.max(shapes, axis=0)
    all_layers = np.full((*largest[:2], len(layers), *largest[2:]), np.nan)
    for index, layer in enumerate(layers):
        corner = tuple(slice(size) for size in layer.shape)
        all_layers[:, :, index][corner] = layer
    return all_layers


def _join_passes(passes: list[Array]) -> Array:
    """Join the `(statistic, sample, ...)` arrays of one layer along `sample`."""
    if len(passes) == 1:
        return passes[0]

    # A pass of shorter sequences has NaN where the longest has more rows or keys.
    longest = np.max([array.shape[2:] for array in passes], axis=0)
    n_samples = sum(array.shape[1] for array in passes)
    all_samples = np.full((len(passes[0]), n_samples, *longest), np.nan)
    start = 0
    for array in passes:
        corner = tuple(slice(size) for size in array.shape[2:])
        all_samples[:, start : start + array.shape[1]][:, :, *corner] = array
        start += array.shape[1]
    return all_samples
