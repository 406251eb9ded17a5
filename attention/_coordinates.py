from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import xarray as xr

from attention._layout import Layout

_AXES = {
    "sample": "index of the sample",
    "head": "attention head",
    "query": "attending position",
    "key": "attended position",
}


class Seen(NamedTuple):
    """What the coordinates say about a layer; `shape` is `(group, head, query, key)`."""

    layer: str
    kind: str
    shape: tuple[int, int, int, int]
    windows: int
    layout: Layout


# Making indexes is half of making a Dataset, and while a model trains they are always the same.
@lru_cache(maxsize=16)
def coordinates_of(
    sizes: tuple[tuple[str, int], ...], layers: tuple[Seen, ...], rows: tuple[int, ...] | None
) -> xr.Coordinates:
    """Label the axes, whose `sizes` these are, and every layer; `rows` are the queries' numbers."""
    labels = {dim: list(range(size)) for dim, size in sizes if dim != "layer"}
    if rows is not None:
        labels["query"] = list(rows)
    found = {
        dim: _label(dim, _AXES.get(dim, _output_axis(dim)), values)
        for dim, values in labels.items()
    }
    sides = [seen.layout.keys or (np.nan, np.nan) for seen in layers]
    per_layer: dict[str, tuple[str, Sequence[object]]] = {
        "layer": ("attention layer", [seen.layer for seen in layers]),
        "kind": ("how the layer computes attention", [seen.kind for seen in layers]),
        "n_heads": ("number of heads", [seen.shape[1] for seen in layers]),
        "n_windows": ("number of windows", [seen.windows for seen in layers]),
        "n_queries": ("queries in a window", [seen.shape[2] for seen in layers]),
        "n_keys": ("keys in a window", [seen.shape[3] for seen in layers]),
        "n_prefix": ("class and register tokens", [seen.layout.prefix for seen in layers]),
        "grid_height": ("height of the grid of keys", [float(height) for height, _ in sides]),
        "grid_width": ("width of the grid of keys", [float(width) for _, width in sides]),
    }
    found |= {name: _label("layer", text, values) for name, (text, values) in per_layer.items()}
    return xr.Coordinates(found)


def _label(dim: str, text: str, values: Sequence[object]) -> xr.Variable:
    array = np.array(values)
    array.flags.writeable = False  # many Datasets share it
    return xr.Variable(dim, array, {"long_name": text})


def _output_axis(dim: str) -> str:
    return f"axis {dim.partition('_')[2] or 1} of the output"
