import numpy as np
import xarray as xr

from resonance_toolkit import provenance


def rollout(maps: xr.Dataset, *, residual: float = 0.5) -> xr.Dataset:
    """Follow attention through the layers, down to the input tokens.

    Each layer passes on `residual * I + (1 - residual) * A`, with `A` its attention averaged over
    heads, and the layers are multiplied (Abnar and Zuidema, 2020, "Quantifying attention flow in
    transformers", with `residual=0.5`). Rows add up to one. `residual=1` gives the identity;
    uniform attention over `N` tokens gives `r I + (1 - r) / N` after `L` layers, with
    `r = residual ** L`.

    Args:
        maps: From `attention.capture(..., queries="all", keys="all", maps=True)`, of layers that
            all attend from the same tokens to the same tokens.
        residual: The share of a token that the skip connection passes on.

    Returns:
        Dataset with `rollout (sample, layer, query, key)`: how much each input token reaches each
        token after that layer. Further dimensions of `maps`, such as `step`, stay.

    Raises:
        ValueError: If `maps` lacks rows or columns, or its layers differ in size.

    Examples:
        >>> dims = ("layer", "head", "query", "key")
        >>> uniform = xr.Dataset({"weight": (dims, [[[[0.5, 0.5], [0.5, 0.5]]]])})
        >>> rollout(uniform)["rollout"].values
        array([[[0.75, 0.25],
                [0.25, 0.75]]])
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"`residual`: expected a share from 0 to 1, got {residual!r}")
    weight = maps.get("weight")
    if weight is None or not {"layer", "head", "query", "key"} <= set(weight.dims):
        raise ValueError(
            '`maps`: expected capture(..., queries="all", keys="all", maps=True), got '
            f"{'no `weight`' if weight is None else ', '.join(map(str, weight.dims))}"
        )
    uneven = _is_uneven(maps)
    if weight.sizes["query"] != weight.sizes["key"] or uneven:
        raise ValueError(
            "`maps`: expected layers that attend from the same tokens to the same tokens; got "
            f"{weight.sizes['query']} queries and {weight.sizes['key']} keys"
            f"{', and layers of several sizes: pick some with `layers=`' if uneven else ''}"
        )
    others = [dim for dim in weight.dims if dim not in ("layer", "head", "query", "key")]
    mean = weight.mean("head").fillna(0).transpose("layer", *others, "query", "key")
    tokens = np.eye(weight.sizes["query"])
    steps = residual * tokens + (1 - residual) * mean.values
    reached = [tokens]
    for step in steps:
        reached.append(step @ reached[-1])
    result = mean.copy(data=np.stack(reached[1:])).transpose(*others, "layer", "query", "key")
    result.attrs = {"long_name": "share of an input token in a token"}
    attributes = maps.attrs | provenance("attention.rollout", residual=residual)
    return xr.Dataset({"rollout": result}, attrs=attributes)


def _is_uneven(maps: xr.Dataset) -> bool:
    sizes = [name for name in ("n_queries", "n_keys", "n_windows") if name in maps.coords]
    same = all(len(np.unique(maps[name])) == 1 for name in sizes)
    return not same or bool(("n_windows" in sizes) and (maps["n_windows"] > 1).any())
