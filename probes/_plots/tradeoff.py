from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from resonance_toolkit import Title, check_choice, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from probes._exit_analysis.token_statistics import Measure

ComputeVariable = Literal["compute_with_head", "compute"]

# For each horizontal axis, the variable that holds the same for a fixed depth.
_FIXED_COMPUTE = {"compute_with_head": "fixed_compute_with_head", "compute": "depth"}
_VARIABLES = ("perplexity", "random_perplexity", "fixed_perplexity", "oracle_perplexity", "shallow")


def plot_tradeoff(
    routes: xr.Dataset,
    *,
    measure: Measure = "max softmax",
    exit: str | None = None,
    compute: ComputeVariable = "compute_with_head",
    hue: str | None = None,
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw perplexity against compute, with references that do not use the confidence.

    The solid curve shows routing by confidence, one point per threshold. The dashed curve lets as
    many tokens leave at random. Squares are fixed depths, and the dotted line is the oracle. Where
    the solid curve is not below the dashed one, confidence is no better than chance.

    Args:
        routes: Made by `route_exits` or `exits`. Along a dimension `seed`, thin curves
            are the seeds and thick ones their mean.
        measure: Which confidence measure: `"max softmax"`, `"margin"`, `"entropy"`, `"cosine"` or
            `"patience"`.
        exit: Which exit is opened; the first if not given.
        compute: The horizontal axis: `"compute_with_head"` or `"compute"`, layers alone.
        hue: A further dimension that tells curves apart by colour.
        title: A text, or True for one made from the attributes.
        ax: Where to draw.
        style: For the routed curves.

    Returns:
        The Axes.

    Raises:
        ValueError: If `routes` is something else, or has a dimension that is neither.
    """
    curves = _select_curves(routes, measure, exit, compute, hue)
    if ax is None:
        ax = new_axes(figsize=(8.0, 4.4))

    routed_lines = []
    groups = [None] if hue is None else list(curves[hue].values)
    for i, group in enumerate(groups):
        group_curves = curves if hue is None else curves.sel({hue: group})
        prefix = "" if group is None else f"{group}: "
        routed_lines.append(_draw_group(ax, group_curves, compute, f"C{i}", prefix, style))

    ax.set(
        xlabel=str(routes[compute].attrs.get("long_name", compute)),
        ylabel="perplexity",
    )
    ax.grid(alpha=0.3)

    # With a hue, each colour is named once, and what all colours share once in grey.
    entries: dict[str, Any] = {}
    if hue is not None:
        entries["handles"] = [*routed_lines, *_legend_of_references()]
    write_title(ax, title, routes)
    legend_outside(ax, **entries)
    return ax


def _draw_group(
    ax: Axes, curves: xr.Dataset, compute: str, colour: str, prefix: str, style: dict[str, Any]
) -> Line2D:
    """Draw the curves of one colour, and return the routed one."""
    look = {"color": colour, "markersize": 4}
    routed_look = look | {"marker": "o", "label": f"{prefix}routed by confidence"} | style
    random_look = look | {"marker": "", "label": f"{prefix}at random"}
    routed_line = _draw_curve(ax, curves[[compute, "perplexity"]], "-", colour, routed_look)
    _draw_curve(ax, curves[[compute, "random_perplexity"]], "--", colour, random_look)

    mean = _mean_over_seeds(curves)
    ax.plot(
        mean[_FIXED_COMPUTE[compute]],
        mean["fixed_perplexity"],
        "s",
        color=colour,
        mfc="none",
        label=f"{prefix}fixed depth",
    )
    oracle = float(mean["oracle_perplexity"])
    ax.axhline(oracle, color=colour, linestyle=":", linewidth=1, label=f"{prefix}oracle")
    return routed_line


def _draw_curve(
    ax: Axes, curves: xr.Dataset, line: str, colour: str, look: dict[str, Any]
) -> Line2D:
    """Draw the second variable against the first: thin for each seed, thick for their mean."""
    x_name, y_name = curves.data_vars

    if "seed" in curves.dims:
        for seed in range(curves.sizes["seed"]):
            of_seed = curves.isel(seed=seed)
            x, y = _sort_by_x(of_seed[x_name].values, of_seed[y_name].values)
            ax.plot(x, y, line, color=colour, alpha=0.25, linewidth=0.7)

    mean = _mean_over_seeds(curves)
    x, y = _sort_by_x(mean[x_name].values, mean[y_name].values)
    (mean_line,) = ax.plot(x, y, line, **look)
    return mean_line


def _legend_of_references() -> list[Line2D]:
    """Explain in grey what the curves of all colours have in common."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color="0.4", linestyle="--", label="at random"),
        Line2D([], [], color="0.4", linestyle="", marker="s", mfc="none", label="fixed depth"),
        Line2D([], [], color="0.4", linestyle=":", linewidth=1, label="oracle"),
    ]


def _mean_over_seeds(curves: xr.Dataset) -> xr.Dataset:
    return curves.mean("seed") if "seed" in curves.dims else curves


def _sort_by_x(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _select_curves(
    routes: xr.Dataset, measure: str, exit: str | None, compute: str, hue: str | None
) -> xr.Dataset:
    missing_names = [name for name in (*_VARIABLES, compute) if name not in routes]
    if missing_names or compute not in _FIXED_COMPUTE:
        raise ValueError(
            "`routes`: expected a Dataset made by probes.route_exits, and `compute` as one of its "
            f"two kinds, got {compute!r} and no {', '.join(missing_names) or 'such kind'}"
        )

    # What tells curves apart by colour is not selected; nor is what the caller has selected.
    selection = {}
    exit = str(routes["exit"].values[0]) if exit is None else exit
    for name, value in (("measure", measure), ("exit", exit)):
        if name == hue:
            continue
        check_choice(name, value, [str(choice) for choice in np.atleast_1d(routes[name].values)])
        if name in routes.dims:
            selection[name] = value
    curves = routes[[*_VARIABLES, compute, _FIXED_COMPUTE[compute]]].sel(selection)

    other_dims = set(curves.dims) - {"threshold", "layer", "seed", hue}
    if other_dims or (hue is not None and hue not in curves.dims):
        raise ValueError(
            f"`hue`: expected one dimension beside threshold, layer and seed, got {hue!r} for "
            f"{', '.join(sorted(map(str, other_dims))) or 'none'}"
        )
    return curves
