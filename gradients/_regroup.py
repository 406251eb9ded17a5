from collections.abc import Mapping, Sequence

import xarray as xr

from gradients._dataset import layer_coordinate, with_cosines
from resonance_toolkit import select

# What adds up over layers as it is, and what adds up in squares.
_SUMS = (
    "dot",
    "inner_product",
    "n_parameters",
    "squared_norm",
    "micro_batch_squared_norm",
)
_NORMS = ("norm_main", "norm_aux", "norm")


def regroup(
    trace: xr.Dataset, groups: str | Sequence[str] | Mapping[str, str | Sequence[str]]
) -> xr.Dataset:
    """Join the layers of a trace into larger groups: blocks, stages, kinds of layers, everything.

    Inner products and squared norms are summed over layers, so the cosines of the groups are
    exactly those that would have been measured. Layers that the losses do not share are left out
    of the sums.

    Args:
        trace: Made by `Trace`, `compare` or `noise`.
        groups: Shell patterns of modules, such as `"blocks.*"`: each module that matches is a
            group, with all its submodules. Or a mapping from names of your own to one or several
            patterns: each name is one group of all modules that its patterns match. `""` matches
            parameters of the model itself, and `"**"` these and every module.

    Returns:
        The same variables, with the groups as `layer`. Variables over all layers (`cosine_total`,
        `gradient_norm`, the losses) stay the same; `conflict_share` is the share of groups.

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
        >>> regroup(trace, "stem.*")["layer"].values.tolist()
        ['stem.conv', 'stem.norm']
    """
    if groups != "" and not groups:
        raise ValueError(f"`groups`: expected at least one, got {groups!r}")
    if "layer" not in trace.dims:
        raise ValueError(f"`trace`: expected a dimension `layer`, got {dict(trace.sizes)}")

    layers = [str(name) for name in trace["layer"].values]
    if isinstance(groups, Mapping):
        modules_by_group = {name: _find_modules(layers, named) for name, named in groups.items()}
    else:
        modules_by_group = {module: [module] for module in _find_modules(layers, groups)}
    members = {
        name: [layer for layer in layers if any(_is_inside(layer, module) for module in modules)]
        for name, modules in modules_by_group.items()
    }

    # What has no layer stays; what adds up is summed; cosines follow from the sums.
    by_layer = [name for name, variable in trace.variables.items() if "layer" in variable.dims]
    grouped = trace.drop_vars(by_layer)
    label = layer_coordinate(list(members), "group")
    for name in (*_SUMS, *_NORMS):
        if name in trace.variables:
            power = 2 if name in _NORMS else 1
            parts = [_sum(trace[name].sel(layer=layers) ** power) for layers in members.values()]
            group_values = xr.concat(parts, dim=label).transpose(*trace[name].dims) ** (1 / power)
            grouped[name] = group_values.astype(trace[name].dtype).assign_attrs(trace[name].attrs)

    grouped = with_cosines(grouped.set_coords(trace.coords.keys() & grouped.variables.keys()))

    # Over all layers of the trace, also those that are in no group.
    if "cosine_total" in trace:
        grouped["cosine_total"] = trace["cosine_total"]
    return grouped.assign_attrs(groups=", ".join(members))


def _sum(values: xr.DataArray) -> xr.DataArray:
    return values.sum("layer", skipna=True, min_count=1)


def _find_modules(layers: list[str], patterns: str | Sequence[str]) -> list[str]:
    """Find the modules that patterns name, among the layers and all that hold them."""
    names = [patterns] if isinstance(patterns, str) else list(patterns)
    modules = dict.fromkeys(
        module for layer in layers if layer for module in _with_ancestors(layer)
    )

    # The root's name is not a level of a dotted name: no star of one level stands for it.
    root = [""] if "" in layers and ("" in names or "**" in names) else []
    if root:
        names = [name for name in names if name and (modules or name != "**")]
    return root + (select(modules, names, argument="groups") if names else [])


def _is_inside(layer: str, module: str) -> bool:
    return layer == module or layer.startswith(f"{module}.")


def _with_ancestors(layer: str) -> list[str]:
    """Return the names of all modules on the way to a layer, the outermost first."""
    parts = layer.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
