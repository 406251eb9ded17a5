from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

_WANTED = ("perplexity", "random_perplexity", "fixed_perplexity", "oracle_perplexity", "shallow")


def plot_tradeoff(
    routes: xr.Dataset,
    *,
    measure: str = "max softmax",
    exit: str | None = None,
    compute: str = "compute_with_head",
    hue: str | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw perplexity against compute, beside what needs no routing.

    A solid curve is routed, one point per threshold; a dashed one lets as many tokens leave at
    random; squares are fixed depths; a dotted line is the oracle. Where the solid curve is not
    below the dashed one, confidence is worth no more than a coin.

    Args:
        routes: Made by `route_exits` or `exits`. Along a dimension `seed`, thin curves
            are the seeds and thick ones their mean.
        measure: Which confidence measure.
        exit: Which exit is opened; the first if not given.
        compute: The horizontal axis: `"compute_with_head"` or `"compute"`, layers alone.
        hue: A further dimension that tells curves apart by colour.
        ax: Where to draw.
        style: For the routed curves.

    Returns:
        The Axes.

    Raises:
        ValueError: If `routes` is something else, or has a dimension that is neither.
    """
    chosen = _chosen(routes, measure, exit, compute, hue)
    if ax is None:
        import matplotlib.pyplot as plt  # here, so that computing needs no matplotlib

        _, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    groups = [None] if hue is None else list(chosen[hue].values)
    routed = []
    for i, group in enumerate(groups):
        part = chosen if hue is None else chosen.sel({hue: group})
        name = "" if group is None else f"{group}: "
        routed.append(_draw(ax, part, compute, f"C{i}", name, style))
    ax.set(
        xlabel=str(routes[compute].attrs.get("long_name", compute)),
        ylabel="perplexity",
    )
    ax.grid(alpha=0.3)
    ax.legend(handles=None if hue is None else [*routed, *_in_grey()], fontsize="small")
    return ax


def _draw(
    ax: Axes, part: xr.Dataset, compute: str, colour: str, name: str, style: dict[str, Any]
) -> Line2D:
    """One group of curves; the routed one is returned."""
    mean = part.mean("seed") if "seed" in part.dims else part
    curves = {"perplexity": ("-", "routed by confidence"), "random_perplexity": ("--", "at random")}
    drawn = []
    for variable, (line, words) in curves.items():
        if "seed" in part.dims:
            for seed in range(part.sizes["seed"]):
                one = part.isel(seed=seed)
                x, y = _sorted(one[compute].values, one[variable].values)
                ax.plot(x, y, line, color=colour, alpha=0.25, linewidth=0.7)
        look = {"color": colour, "marker": "o" if line == "-" else "", "markersize": 4}
        x, y = _sorted(mean[compute].values, mean[variable].values)
        more = style if line == "-" else {}
        drawn += ax.plot(x, y, line, **{**look, "label": f"{name}{words}", **more})
    where = "fixed_compute_with_head" if compute == "compute_with_head" else "depth"
    fixed = f"{name}fixed depth"
    ax.plot(mean[where], mean["fixed_perplexity"], "s", color=colour, mfc="none", label=fixed)
    oracle = float(mean["oracle_perplexity"])
    ax.axhline(oracle, color=colour, linestyle=":", linewidth=1, label=f"{name}oracle")
    return drawn[0]


def _in_grey() -> list[Line2D]:
    """What the curves of all colours have in common, for the legend."""
    return [
        Line2D([], [], color="0.4", linestyle="--", label="at random"),
        Line2D([], [], color="0.4", linestyle="", marker="s", mfc="none", label="fixed depth"),
        Line2D([], [], color="0.4", linestyle=":", linewidth=1, label="oracle"),
    ]


def _sorted(x: Any, y: Any) -> tuple[Any, Any]:
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _chosen(
    routes: xr.Dataset, measure: str, exit: str | None, compute: str, hue: str | None
) -> xr.Dataset:
    missing = [name for name in (*_WANTED, compute) if name not in routes]
    if missing or compute not in ("compute", "compute_with_head"):
        raise ValueError(
            "`routes`: expected a Dataset made by probes.route_exits, and `compute` as one of its "
            f"two kinds, got {compute!r} and no {', '.join(missing) or 'such kind'}"
        )
    exit = str(routes["exit"].values[0]) if exit is None else exit
    for name, value in (("measure", measure), ("exit", exit)):
        known = [str(v) for v in np.atleast_1d(routes[name].values)]
        if name != hue and value not in known:
            raise ValueError(f"`{name}`: expected one of {', '.join(known)}, got {value!r}")
    picks = {"measure": measure, "exit": exit}
    picks = {k: v for k, v in picks.items() if k != hue and k in routes.dims}
    extent = "fixed_compute_with_head" if compute == "compute_with_head" else "depth"
    chosen = routes[[*_WANTED, compute, extent]].sel(picks)
    others = set(chosen.dims) - {"threshold", "layer", "seed", hue}
    if others or (hue is not None and hue not in chosen.dims):
        raise ValueError(
            f"`hue`: expected one dimension beside threshold, layer and seed, got {hue!r} for "
            f"{', '.join(sorted(map(str, others))) or 'none'}"
        )
    return chosen
