"""The figure of the searches for alpha."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.training.scales import plural


def draw_searches(
    searches: Mapping[tuple[str, int], xr.Dataset],
    published: Mapping[tuple[str, int], Sequence[float]],
) -> Figure:
    """Draw a row for each backbone and number of branches: the grid, and what methods reach."""
    size = (10, 0.6 + 3.2 * len(searches))
    figure, axes = plt.subplots(len(searches), 2, figsize=size, layout="constrained", squeeze=False)

    for (grid_ax, methods_ax), ((name, n), search) in zip(axes, searches.items(), strict=True):
        _draw_grid(search, published[name, n], grid_ax)
        grid_ax.set_title(f"{name}, {n} x")
        _draw_methods(search, methods_ax)
    return figure


def _draw_grid(search: xr.Dataset, published: Sequence[float], ax: Axes) -> None:
    for seed in search["seed"].values:
        accuracies = search["held_out_accuracy"].sel(seed=seed)
        ax.plot(search["candidate"], accuracies, marker="o", markersize=3, label=f"seed {seed}")

    for index, alpha in enumerate(published):
        label = "" if index else "published choice"  # one entry in the legend
        ax.axvline(alpha, color="C1", linestyle="--", label=label)

    ax.set(xscale="log", xlabel="alpha", ylabel="held-out accuracy / %")
    ax.legend(fontsize=8)


def _draw_methods(search: xr.Dataset, ax: Axes) -> None:
    for position in range(search.sizes["search"]):
        accuracies = search["accuracy"].isel(search=position)
        ax.plot([position] * accuracies.size, accuracies, "C0o", alpha=0.6)
        ax.plot(position, accuracies.mean(), "k_", markersize=18)

    methods = zip(search["search"].values, search["n_runs"].values, strict=True)
    labels = [f"{method}\n{plural(int(n_runs), 'run')}" for method, n_runs in methods]
    ax.set_xticks(range(search.sizes["search"]), labels)
    ax.set(ylabel="test accuracy / %", title="what each method reaches")
    ax.margins(x=0.15)
