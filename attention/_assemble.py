from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attention._measure import MEASURES, Meaning
from attention._prediction import prediction_of
from attention._read import Array, Reading, Settings

_VARIABLES = MEASURES | {
    "distance": Meaning("mean attention distance", "token"),
    "prefix_mass": Meaning("attention on class and register tokens"),
}


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
    for name, meaning in _VARIABLES.items():
        own = [dim for dim in dims if dim != "head" or name != "head_similarity"]
        parts = [_join([readings[layer].values[name] for readings in passes]) for layer in layers]
        array = _pad(parts if by_query else [part[..., 0] for part in parts])
        data[name] = xr.Variable(own, array, _attrs(meaning))
    if settings.maps:
        rows = [_join([readings[layer].weights for readings in passes]) for layer in layers]
        array = _pad(rows if by_query else [row[..., 0, :] for row in rows])
        data["weight"] = xr.Variable([*dims, "key"], array, _attrs(Meaning("attention weight")))
    sizes = {str(dim): n for variable in data.values() for dim, n in variable.sizes.items()}
    coordinates = _coordinates(sizes, passes[0], settings)
    if output is not None:
        data["prediction"], axes = prediction_of(output, sizes["sample"])
        coordinates |= axes
    return xr.Dataset(data, coordinates, dict(attributes))


def _coordinates(
    sizes: Mapping[str, int], readings: dict[str, Reading], settings: Settings
) -> dict[str, xr.Variable]:
    names = {
        "sample": "index of the sample",
        "head": "attention head",
        "query": "attending position",
        "key": "attended position",
    }
    found = {
        dim: xr.Variable(dim, np.arange(sizes[dim]), {"long_name": text})
        for dim, text in names.items()
        if dim in sizes
    }
    if isinstance(settings.queries, list):
        found["query"] = xr.Variable("query", settings.queries, {"long_name": names["query"]})
    per_layer = {
        "layer": ("attention layer", list(readings)),
        "kind": ("how the layer computes attention", [r.kind for r in readings.values()]),
        "n_heads": ("number of heads", [r.shape[1] for r in readings.values()]),
        "n_windows": ("number of windows", [r.windows for r in readings.values()]),
        "n_queries": ("queries in a window", [r.shape[2] for r in readings.values()]),
        "n_keys": ("keys in a window", [r.shape[3] for r in readings.values()]),
        "n_prefix": ("class and register tokens", [r.layout.prefix for r in readings.values()]),
        "grid_height": ("height of the grid of keys", [_side(r, 0) for r in readings.values()]),
        "grid_width": ("width of the grid of keys", [_side(r, 1) for r in readings.values()]),
    }
    for name, (text, entries) in per_layer.items():
        found[name] = xr.Variable("layer", entries, {"long_name": text})
    return found


def _side(reading: Reading, axis: int) -> float:
    return float("nan") if reading.layout.keys is None else float(reading.layout.keys[axis])


def _join(parts: list[Array | None]) -> Array:
    known = [part for part in parts if part is not None]
    return known[0] if len(known) == 1 else np.concatenate(known)


def _pad(parts: list[Array]) -> Array:
    """Stack `(sample, ...)` arrays along a new second axis."""
    shapes = [part.shape for part in parts]
    if len(set(shapes)) == 1:
        return np.stack(parts, axis=1)
    shape = np.max(shapes, axis=0)
    whole = np.full((shape[0], len(parts), *shape[1:]), np.nan)
    for index, part in enumerate(parts):
        corner = tuple(slice(size) for size in part.shape[1:])
        whole[:, index][(slice(None), *corner)] = part
    return whole


def _attrs(meaning: Meaning) -> dict[str, str]:
    return {name: text for name, text in meaning._asdict().items() if text}
