from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from resonance_toolkit import (
    Title,
    check_choice,
    label_places,
    legend_outside,
    new_axes,
    write_title,
)

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

BranchVariable = Literal["accuracy", "loss"]

# By the coordinate `trained`, with a mark of its own, for readers who do not see the colours.
_KINDS = {False: ("static branches", "0.45", "o"), True: ("active branches", "C1", "D")}
_DIMS = {"layer", "branch", "seed"}
_WIDTH = 0.28  # that the dots of one kind take of a layer's place


def plot_branches(
    branches: xr.Dataset,
    *,
    variable: BranchVariable = "accuracy",
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw the branches layer by layer: every one as a dot, and the mean of each kind as a line.

    Static branches are grey circles, active ones orange diamonds. The dots of a layer stand side by
    side in the order of the branches (and seeds), so that their height is their spread.

    Args:
        branches: Of `Probe.measure` or `Probe.evaluate`, or of `Probe.fit`, whose interval is drawn
            as a bar. May be joined along `seed`.
        variable: `"accuracy"` or `"loss"`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: For the lines of means, as `Axes.plot` takes it.

    Returns:
        The Axes.

    Raises:
        ValueError: If `branches` is something else.
    """
    check_choice("variable", variable, ("accuracy", "loss"))
    dims = set(branches[variable].dims) if variable in branches else set()
    if not {"layer"} <= dims <= _DIMS:
        raise ValueError(
            f"`branches`: expected `{variable}` over layer, branch and seed at most, as of "
            f"Probe.measure, got {', '.join(map(str, dims)) or 'none'}"
        )

    names = [str(name) for name in branches["layer"].values]
    if ax is None:
        ax = new_axes(figsize=(max(6.4, 2.4 + 0.28 * min(len(names), 30)), 4.0))

    kinds = _split_kinds(branches, variable)
    for i, (is_trained, values) in enumerate(kinds.items()):
        shift = (i - (len(kinds) - 1) / 2) * 1.4 * _WIDTH
        _draw_kind(ax, values, is_trained, shift, style)
    if f"{variable}_low" in branches and dims == {"layer"}:
        _draw_intervals(ax, branches, variable)

    label_places(ax, names)
    ax.set_xlabel("layer")
    ax.set_ylabel(str(branches[variable].attrs.get("long_name", variable)))
    ax.grid(axis="y", alpha=0.3)
    write_title(ax, title, branches)
    legend_outside(ax, side="bottom", ncols=3)
    return ax


def _split_kinds(branches: xr.Dataset, variable: str) -> dict[bool, NDArray[np.float64]]:
    """Give the values of each kind of branch, `(layer, repetition)`."""
    values = branches[variable]
    if "branch" not in values.dims:
        values = values.expand_dims("branch")
    is_trained = np.full(values.sizes["branch"], True)
    if "trained" in branches.coords and branches["trained"].dims == ("branch",):
        is_trained = branches["trained"].values.astype(bool)

    kinds = {}
    for kind in (False, True):
        if (is_trained == kind).any():
            of_kind = values.isel(branch=np.flatnonzero(is_trained == kind))
            of_kind = of_kind.transpose("layer", "branch", ...)
            kinds[kind] = of_kind.values.reshape(len(of_kind), -1)
    return kinds


def _draw_kind(
    ax: Axes, values: NDArray[np.float64], is_trained: bool, shift: float, style: dict[str, Any]
) -> None:
    label, color, marker = _KINDS[is_trained]
    places = np.arange(len(values)) + shift
    n_branches = values.shape[1]

    if n_branches > 1:
        offsets = np.linspace(-_WIDTH / 2, _WIDTH / 2, n_branches)
        x = (places[:, None] + offsets).ravel()
        size = 12 if n_branches <= 24 else 4
        ax.scatter(x, values.ravel(), s=size, color=color, marker=marker, alpha=0.5, linewidth=0)

    # A layer where nothing counted has no mean, and leaves a gap.
    is_finite = np.isfinite(values)
    counts = is_finite.sum(1)
    sums = np.where(is_finite, values, 0.0).sum(1)
    means = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)

    text = label if n_branches == 1 else f"{label} ({n_branches}), and their mean"
    look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5}
    ax.plot(
        places,
        means,
        **(look | {"markeredgecolor": "black", "markeredgewidth": 0.6, "label": text} | style),
    )


def _draw_intervals(ax: Axes, branches: xr.Dataset, variable: str) -> None:
    low, high = (branches[f"{variable}_{end}"].values for end in ("low", "high"))
    level = branches.attrs.get("level")
    label = "interval" if level is None else f"{float(level):.0%} interval"
    ax.vlines(np.arange(len(low)), low, high, color="black", linewidth=1.2, label=label)
