import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from attention._measure import MEASURES, Label, measure
from resonance_toolkit import check_share, provenance

# They need more than the weights, so that they are taken over as they are.
_CARRIED_OVER = ("distance", "prefix_mass")

_OBJECT_NAMES = {
    "object_coverage": "share of the object's patches near the peak",
    "object_mass": "attention on the object",
}


def statistics(
    maps: xr.Dataset, *, threshold: float = 0.1, mass: float = 0.9, mask: ArrayLike | None = None
) -> xr.Dataset:
    """Measure rows of attention weights `p`, each over the `K` keys that it can see.

    | variable | definition | range | uniform | one key |
    | --- | --- | --- | --- | --- |
    | `entropy` | `-sum p log p`, in nats | 0 to `log K` | `log K` | 0 |
    | `normalised_entropy` | `entropy / log K` | 0 to 1 | 1 | 0 |
    | `gini` | `sum_ij abs(p_i - p_j) / (2 K)` | 0 to `1 - 1/K` | 0 | `1 - 1/K` |
    | `peak` | `max p` | `1/K` to 1 | `1/K` | 1 |
    | `coverage` | share of keys with `p >= threshold * peak` | `1/K` to 1 | 1 | `1/K` |
    | `mass_coverage` | fewest keys with `sum p >= mass`, over `K` | `1/K` to 1 | `mass` | `1/K` |
    | `participation` | `1 / sum p^2`, in keys | 1 to `K` | `K` | 1 |
    | `head_similarity` | mean cosine between two heads' rows | 0 to 1 | 1 | 0 or 1 |
    | `object_coverage` | `coverage` among the object's keys | 0 to 1 | 1 | - |
    | `object_mass` | sum of `p` over the object's keys | 0 to 1 | object's share | 0 or 1 |

    (`mass_coverage` of uniform attention is `mass`, rounded up to whole keys.) Average
    statistics, not maps: the entropy of a mean map is larger than the mean entropy.

    Args:
        maps: A Dataset with `weight (..., key)`, such as `attention.capture(..., maps=True)`
            returns, possibly concatenated over steps. NaN marks a key that the row cannot see.
        threshold: A key is covered if its weight is at least this share of the row's peak.
        mass: The share of the attention that `mass_coverage` collects.
        mask: `(sample, height, width)`, above 0 where the object is, in pixels or patches of the
            same image. A patch belongs to the object if at least half of it does.

    Returns:
        Dataset with the variables above, without `key`; `head_similarity` without `head` as well.
        NaN: all of them, if the row sees no key; `normalised_entropy`, if it sees one;
        `head_similarity`, if there is one head; those of the object, if a layer's keys do not form
        an image (windows, channels) or the object has no patch. `distance` and `prefix_mass` are
        copied from `maps`.

    Raises:
        ValueError: If there is no `weight`, its rows do not add up to one, or `mask` does not fit.

    Examples:
        >>> weights = [[0.25, 0.25, 0.25, 0.25], [0, 0, 1, 0]]
        >>> rows = xr.Dataset({"weight": (("head", "key"), weights)})
        >>> statistics(rows)["gini"].values
        array([0.  , 0.75])
    """
    threshold = check_share("threshold", threshold)
    mass = check_share("mass", mass)
    weight = _check_weight(maps)

    # As `measure` has the axes: (..., head, query, key), those that are missing of length 1.
    last_dims = ["head", "query", "key"]
    added_dims = [dim for dim in ("head", "query") if dim not in weight.dims]
    other_dims = [dim for dim in weight.dims if dim not in last_dims]
    rows = weight.expand_dims(added_dims).transpose(*other_dims, *last_dims)
    values = measure(torch.from_numpy(rows.values), threshold=threshold, mass=mass)

    result = xr.Dataset(attrs=_attributes(maps, threshold, mass))
    for name, value in values.items():
        template = rows.isel(key=0, drop=True)
        if name == "head_similarity":
            template = template.isel(head=0, drop=True)
        result[name] = _label(value, template, added_dims, MEASURES[name])

    if mask is not None:
        for name, variable in _object_statistics(weight, maps, mask, threshold).items():
            result[name] = variable.assign_attrs(long_name=_OBJECT_NAMES[name])
    return result.assign({name: maps[name] for name in _CARRIED_OVER if name in maps})


def _check_weight(maps: xr.Dataset) -> xr.DataArray:
    weight = maps.get("weight")
    if weight is None or "key" not in weight.dims:
        raise ValueError(
            "`maps`: expected `weight` with a dimension `key`, as from capture(..., maps=True); "
            f"got {', '.join(map(str, maps.data_vars)) or 'nothing'}"
        )

    # Rows made in float32 add up to one only nearly.
    weight = weight.astype(float)
    total = weight.sum("key", min_count=1)
    is_distribution = (abs(total - 1) < 1e-4) & (weight.min("key") >= 0)
    if not bool((is_distribution | total.isnull()).all()):
        raise ValueError("`maps`: expected rows of `weight` that add up to one, and none negative")
    return weight


def _label(
    value: Tensor, template: xr.DataArray, added_dims: list[str], label: Label
) -> xr.DataArray:
    added = [dim for dim in added_dims if dim in template.dims]
    array = template.copy(data=value.numpy()).squeeze(added, drop=True)
    array.attrs = dict(label.attributes())
    return array


def _object_statistics(
    weight: xr.DataArray, maps: xr.Dataset, mask: ArrayLike, threshold: float
) -> dict[str, xr.DataArray]:
    on_object = xr.DataArray(
        _object_keys(maps, np.asarray(mask, dtype=float)), dims=("sample", "layer", "key")
    )
    on_object = on_object.where(on_object.any("key"))  # NaN where the object has no patch

    is_visible = weight.notnull()
    is_covered = (weight >= threshold * weight.max("key")).where(is_visible)
    n_patches = (is_visible * on_object).sum("key")
    return {
        "object_coverage": (is_covered * on_object).sum("key") / n_patches,
        "object_mass": (weight * on_object).sum("key", min_count=1),
    }


def _object_keys(maps: xr.Dataset, mask: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which keys lie on the object, `(sample, layer, key)`."""
    missing_coordinates = {"n_windows", "n_prefix", "grid_height", "grid_width"} - set(maps.coords)
    if missing_coordinates:
        raise ValueError(
            f"`maps`: with `mask`, expected {', '.join(sorted(missing_coordinates))} as capture has"
        )
    if mask.ndim != 3 or len(mask) != maps.sizes["sample"]:
        raise ValueError(
            f"`mask`: expected ({maps.sizes['sample']}, height, width), got {mask.shape}"
        )

    object_area = torch.from_numpy(mask > 0).double()[:, None]
    keys = np.zeros((len(mask), maps.sizes["layer"], maps.sizes["key"]), dtype=bool)

    for index in range(maps.sizes["layer"]):
        layer = maps.isel(layer=index)
        if int(layer["n_windows"]) > 1 or bool(layer["grid_height"].isnull()):
            continue  # its keys form no image

        # A patch belongs to the object if at least half of it does.
        grid = int(layer["grid_height"]), int(layer["grid_width"])
        is_inside = F.adaptive_avg_pool2d(object_area, grid).flatten(1).numpy() >= 0.5

        first_key = int(layer["n_prefix"]) if maps.attrs.get("keys") == "all" else 0
        keys[:, index, first_key : first_key + is_inside.shape[1]] = is_inside
    return keys


def _attributes(maps: xr.Dataset, threshold: float, mass: float) -> dict[str, str | int | float]:
    return {
        **{str(name): value for name, value in maps.attrs.items()},
        **provenance("attention.statistics", threshold=threshold, mass=mass),
    }
