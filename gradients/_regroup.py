from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from gradients._cosine import with_cosines
from resonance_toolkit import select

_ADDED = ("dot", "inner_product")
_ADDED_IN_SQUARES = ("norm_main", "norm_aux", "norm")


def regroup(
    trace: xr.Dataset, groups: str | Sequence[str] | Mapping[str, str | Sequence[str]]
) -> xr.Dataset:
    """Join the layers of a trace into larger groups: stages, kinds of layers, everything.

    Inner products and squared norms add up, so that the cosines of the groups are exactly those
    that would have been measured. Layers that the losses do not share stay out of the sums.

    Args:
        trace: Made by `Trace`, `compare` or `noise`.
        groups: Shell patterns of layers, each a group of that name, or a mapping from names to one
            or several patterns. A pattern that names a module takes all that is inside.

    Returns:
        The same variables, with the groups as `layer`. What is over all layers (`cosine_total`,
        `grad_norm`, the losses) stays; `conflict_fraction` is the share of groups.

    Raises:
        ValueError: If a pattern matches nothing, or there are no groups or no layers.

    Examples:
        >>> trace = xr.Dataset(
        ...     {
        ...         "dot": ("layer", [1.0, -4.0]),
        ...         "norm_main": ("layer", [3.0, 4.0]),
        ...         "norm_aux": ("layer", [1.0, 0.0]),
        ...     },
        ...     {"layer": ["stem.conv", "stem.norm"]},
        ... )
        >>> regroup(trace, "stem")["cosine"].values  # (1 - 4) / (5 * 1)
        array([-0.6])
    """
    named = groups if isinstance(groups, Mapping) else _by_pattern(groups)
    if not named:
        raise ValueError(f"`groups`: expected at least one, got {groups!r}")
    if "layer" not in trace.dims:
        raise ValueError(f"`trace`: expected a dimension `layer`, got {dict(trace.sizes)}")
    layers = [str(name) for name in trace["layer"].values]
    spellings = {name: _with_ancestors(name) for name in layers}
    members = [
        select(layers, patterns, argument="groups", spellings=spellings)
        for patterns in named.values()
    ]
    label = xr.Variable("layer", np.array(list(named), dtype=object), {"long_name": "group"})
    grouped = trace.drop_vars([name for name, v in trace.variables.items() if "layer" in v.dims])
    for name in (*_ADDED, *_ADDED_IN_SQUARES, "n_parameters"):
        if name in trace.variables:
            power = 2 if name in _ADDED_IN_SQUARES else 1
            parts = [_sum(trace[name].sel(layer=chosen) ** power) for chosen in members]
            joined = xr.concat(parts, dim=label).transpose(*trace[name].dims) ** (1 / power)
            grouped[name] = joined.astype(trace[name].dtype).assign_attrs(trace[name].attrs)
    grouped = with_cosines(grouped.set_coords(trace.coords.keys() & grouped.variables.keys()))
    if "cosine_total" in trace:
        grouped["cosine_total"] = trace["cosine_total"]
    return grouped.assign_attrs(groups=", ".join(named))


def _sum(values: xr.DataArray) -> xr.DataArray:
    return values.sum("layer", skipna=True, min_count=1)


def _by_pattern(patterns: str | Sequence[str]) -> dict[str, str | Sequence[str]]:
    return {pattern: pattern for pattern in ([patterns] if isinstance(patterns, str) else patterns)}


def _with_ancestors(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}
