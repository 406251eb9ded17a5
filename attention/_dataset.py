from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attention._coordinates import Seen, coordinates_of
from attention._measure import Meaning
from attention._prediction import prediction_of
from attention._read import STATISTICS, Array, Reading, Settings


def assemble(
    passes: list[dict[str, Reading]],
    settings: Settings,
    attributes: Mapping[str, str | int | float],
    output: Any,
) -> xr.Dataset:
    """Lay readings out over `(sample, layer, head, query, key)`, with NaN where one is smaller.

    `output` is what the model returned, or None to leave it out.
    """
    layers = list(passes[0])
    for readings in passes[1:]:
        if list(readings) != layers:
            raise ValueError(
                "the forward passes differ in their attention layers: expected "
                f"{', '.join(layers)}; got {', '.join(readings)}"
            )
        for layer in layers:
            (_, *one), (_, *other) = passes[0][layer].shape, readings[layer].shape
            if one != other:
                raise ValueError(
                    f"the forward passes differ in size: layer {layer!r} has {one} heads, queries "
                    f"and keys, then {other}: record them one by one, and concatenate"
                )
    by_query = settings.queries not in ("cls", "mean")
    dims = ["sample", "layer", "head", "query"][: 4 if by_query else 3]
    data: dict[str, xr.Variable] = {}
    values = _lay_out([[readings[layer].values for readings in passes] for layer in layers])
    values = values if by_query else values[..., 0]
    for array, (name, meaning) in zip(values, STATISTICS.items(), strict=True):
        if name == "head_similarity":  # the same for every head
            own = [dim for dim in dims if dim != "head"]
            data[name] = xr.Variable(own, array[:, :, 0].copy(), _attrs(meaning))
        else:
            data[name] = xr.Variable(dims, array, _attrs(meaning))
    if settings.maps:
        rows = [[readings[layer].weights[None] for readings in passes] for layer in layers]
        weight = _lay_out(rows)[0]
        weight = weight if by_query else weight[..., 0, :]
        data["weight"] = xr.Variable([*dims, "key"], weight, _attrs(Meaning("attention weight")))
    if output is not None:
        data["prediction"] = prediction_of(output, len(next(iter(data.values()))))
    sizes = {str(dim): n for variable in data.values() for dim, n in variable.sizes.items()}
    seen = [Seen(name, r.kind, r.shape, r.windows, r.layout) for name, r in passes[0].items()]
    numbers = tuple(settings.queries) if isinstance(settings.queries, list) else None
    coordinates = coordinates_of(tuple(sizes.items()), tuple(seen), numbers)
    return xr.Dataset(data, coordinates, dict(attributes))


def _lay_out(parts: list[list[Array]]) -> Array:
    """Join `(statistic, sample, ...)` arrays of passes; stack those of layers as a third axis."""
    layers = [part[0] if len(part) == 1 else np.concatenate(part, axis=1) for part in parts]
    shapes = [layer.shape for layer in layers]
    if len(set(shapes)) == 1:
        return np.stack(layers, axis=2)
    largest = np.max(shapes, axis=0)
    whole = np.full((*largest[:2], len(layers), *largest[2:]), np.nan)
    for index, layer in enumerate(layers):
        corner = tuple(slice(size) for size in layer.shape)
        whole[:, :, index][corner] = layer
    return whole


def _attrs(meaning: Meaning) -> dict[str, str]:
    return {name: text for name, text in meaning._asdict().items() if text}
