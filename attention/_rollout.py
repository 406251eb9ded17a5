from numbers import Real

import numpy as np
import xarray as xr

from resonance_toolkit import provenance


def rollout(maps: xr.Dataset, *, residual: float = 0.5) -> xr.Dataset:
    """Follow attention through the layers, down to the input tokens.

    For each layer, the matrix is `residual * I + (1 - residual) * A`, where `A` is its attention
    averaged over heads. The matrices of the layers are multiplied (Abnar and Zuidema, 2020,
    "Quantifying attention flow in transformers", with `residual=0.5`). Rows sum to one.
    `residual=1` gives the identity; uniform attention over `N` tokens gives `r I + (1 - r) / N`
    after `L` layers, with `r = residual ** L`.

    Args:
        maps: From `attention.capture(..., queries="all", keys="all", maps=True)`, of layers that
            all attend from the same tokens to the same tokens.
        residual: The share of a token that the skip connection passes on.

    Returns:
        Dataset with `rollout (sample, layer, query, key)`: how much each input token contributes to
        each token after that layer. Further dimensions of `maps`, such as `step`, are kept.

    Raises:
        ValueError: If `maps` lacks rows or columns, or its layers differ in size.

    Examples:
        >>> dims = ("layer", "head", "query", "key")
        >>> uniform = xr.Dataset({"weight": (dims, [[[[0.5, 0.5], [0.5, 0.5]]]])})
        >>> rollout(uniform)["rollout"].values
        array([[[0.75, 0.25],
                [0.25, 0.75]]])
    """
    if not isinstance(residual, Real) or not 0 <= residual <= 1:
        raise ValueError(f"`residual`: expected a share from 0 to 1, got {residual!r}")
    weight = _check_maps(maps)

    # One matrix per layer; NaN marks a key that a row cannot see.
    other_dims = [dim for dim in weight.dims if dim not in ("layer", "head", "query", "key")]
    mean = weight.mean("head").fillna(0).transpose("layer", *other_dims, "query", "key")
    identity = np.eye(weight.sizes["query"])
    passed_on = residual * identity + (1 - residual) * mean.values

    products = []
    product = identity
    for layer_matrix in passed_on:
        product = layer_matrix @ product
        products.append(product)

    result = mean.copy(data=np.stack(products)).transpose(*other_dims, "layer", "query", "key")
    result.attrs = {"long_name": "share of an input token in a token"}
    attributes = maps.attrs | provenance("attention.rollout", residual=residual)
    return xr.Dataset({"rollout": result}, attrs=attributes)


def _check_maps(maps: xr.Dataset) -> xr.DataArray:
    weight = maps.get("weight")
    if weight is None or not {"layer", "head", "query", "key"} <= set(weight.dims):
        raise ValueError(
            '`maps`: expected capture(..., queries="all", keys="all", maps=True), got '
            f"{'no `weight`' if weight is None else ', '.join(map(str, weight.dims))}"
        )

    is_uneven = _is_uneven(maps)
    if weight.sizes["query"] != weight.sizes["key"] or is_uneven:
        raise ValueError(
            "`maps`: expected layers that attend from the same tokens to the same tokens; got "
            f"{weight.sizes['query']} queries and {weight.sizes['key']} keys"
            f"{', and layers of several sizes: pick some with `layers=`' if is_uneven else ''}"
        )
    return weight


def _is_uneven(maps: xr.Dataset) -> bool:
    names = [name for name in ("n_queries", "n_keys", "n_windows") if name in maps.coords]
    differ = any(len(np.unique(maps[name])) > 1 for name in names)
    has_windows = "n_windows" in names and bool((maps["n_windows"] > 1).any())
    return differ or has_windows
