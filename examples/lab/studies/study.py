"""Plain against asymmetric training, cell by cell of a table: run, test, compare, draw."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.results.publish import Row, compare, publish
from lab.results.statistics import paired
from lab.studies.sweep import executing, sweep
from lab.training.recipe import Recipe
from lab.training.scales import budget_of, seeds

TITLES = {
    "n": "branches at each layer",
    "per_class": "training images per class",
    "flipped": "flipped labels / %",
}


@dataclass(frozen=True)
class Cell:
    """One comparison: where it stands in the table, both recipes, and the published accuracies."""

    labels: Mapping[str, str | int | float]
    plain: Recipe
    asymmetric: Recipe
    published: tuple[float, float] | None = None  # plain, asymmetric; in percent
    alphas: Mapping[int, float] | None = None  # by seed, where the strength was searched by seed

    def recipes(self, seed: int) -> tuple[Recipe, Recipe]:
        """Both recipes with this seed."""
        alpha = self.alphas.get(seed, self.asymmetric.alpha) if self.alphas else None
        alpha = self.asymmetric.alpha if alpha is None else alpha
        return replace(self.plain, seed=seed), replace(self.asymmetric, seed=seed, alpha=alpha)


def study(cells: Sequence[Cell], args: argparse.Namespace, *, published_seeds: int = 10) -> None:
    """All of a table: train every cell over the seeds, test, print, draw, write."""
    chosen = seeds(args, published_seeds)
    result = run_cells(cells, args, chosen)
    x, *others = list(cells[0].labels)[::-1]
    publish(
        result,
        draw_changes(result, x=x, hue=others[0] if others else None),
        rows_of(cells, result, args.scale),
        output=args.output,
        budget=budget_of([cell.plain for cell in cells], len(chosen)),
    )


def run_cells(cells: Sequence[Cell], args: argparse.Namespace, chosen: Sequence[int]) -> xr.Dataset:
    """Accuracy after the last epoch, and the statistics of the change, over the cells' labels.

    Returns:
        Dataset with `accuracy (training, ..., seed)` in percent, what
        `lab.results.statistics.paired` gives, and `published_change`, over the labels; cells that
        the table has not are NaN.
    """
    pairs = [[cell.recipes(seed) for seed in chosen] for cell in cells]
    recipes = [recipe for cell in pairs for kind in zip(*cell, strict=True) for recipe in kind]
    with executing(args) as executor:
        runs = sweep(recipes, cache=args.cache, executor=executor)
    finals = [100 * run["test_accuracy"].values[-1] for run in runs]
    values = np.reshape(finals, (len(cells), 2, len(chosen)))
    names = list(cells[0].labels)
    axes = {name: _in_order([cell.labels[name] for cell in cells]) for name in names}
    coords = {
        "training": ["plain", "asymmetric"],
        **axes,
        "seed": list(chosen),
    }
    accuracy = xr.DataArray(np.nan, coords, list(coords)).copy()
    published = accuracy.isel(training=0, seed=0, drop=True).copy()
    for cell, value in zip(cells, values, strict=True):
        accuracy.loc[dict(cell.labels)] = value
        if cell.published is not None:
            published.loc[dict(cell.labels)] = cell.published[1] - cell.published[0]
    result = paired(accuracy.sel(training="plain"), accuracy.sel(training="asymmetric"))
    result = result.drop_vars("training", errors="ignore")
    result["accuracy"] = accuracy.assign_attrs(long_name="test accuracy", units="%")
    result["published_change"] = published.assign_attrs(
        long_name="published difference, asymmetric - plain", units="%"
    )
    for name in coords:
        result[name].attrs["long_name"] = TITLES.get(name, name)
    return result


def rows_of(cells: Sequence[Cell], result: xr.Dataset, scale: str) -> list[Row]:
    """The change of accuracy in points, cell by cell."""
    rows = []
    for cell in cells:
        if cell.published is None:
            continue
        here = result.sel(dict(cell.labels))
        before, after = float(here["mean_plain"]), float(here["mean_asymmetric"])
        note = f"{before:.1f} to {after:.1f} %" if int(here["n_pairs"]) else _why_undefined(here)
        note += f", published {cell.published[0]} to {cell.published[1]} %"
        note += f"; p = {float(here['p']):.2g}" if np.isfinite(here["p"]) else ""
        label = ", ".join(_named(name, value) for name, value in cell.labels.items())
        change = round(cell.published[1] - cell.published[0], 4)
        detached = not cell.asymmetric.connected  # no loss, no effect: with no training needed
        free: dict[str, Any] = {"budget_free": True, "tolerance": 1.0} if detached else {}
        quantity, value = f"{label}, change / points", float(here["change"])
        rows.append(compare(quantity, change, value, scale=scale, note=note, **free))
    return rows


def draw_changes(result: xr.Dataset, *, x: str, hue: str | None = None) -> Figure:
    """The change over one label, a panel for each entry of another; the published one hollow.

    A panel without a pair of runs that can be compared says so, and is otherwise empty.
    """
    entries = [None] if hue is None else list(result[hue].values)
    columns = min(len(entries), 3)
    lines = -(-len(entries) // columns)
    figure, panels = plt.subplots(
        lines,
        columns,
        figsize=(1.2 + 3.4 * columns, 0.5 + 3.2 * lines),
        layout="constrained",
        squeeze=False,
    )
    for ax in panels.flat[len(entries) :]:
        ax.set_axis_off()
    for ax, entry in zip(panels.flat, entries, strict=False):
        part = result if entry is None else result.sel({hue: entry})
        _draw_panel(part, x, ax)
        ax.set_title("" if entry is None else _named(str(hue), entry))
    for line in panels:
        line[0].set_ylabel("change of test accuracy / points")
    handles = [ax.get_legend_handles_labels() for ax in panels.flat]
    figure.legend(
        *max(handles, key=lambda found: len(found[0])),
        loc="outside upper center",
        ncols=2,
        fontsize=9,
    )
    return figure


def _draw_panel(part: xr.Dataset, x: str, ax: Axes) -> None:
    known = part.where(part["change"].notnull(), drop=True)
    places = np.arange(known.sizes[x])
    ax.axhline(0, color="0.6", linewidth=1)
    ax.set_xlabel(TITLES.get(x, x))
    if not known.sizes[x]:
        ax.set(xticks=[], yticks=[])
        box = {"facecolor": "white", "edgecolor": "none"}
        middle = {"ha": "center", "va": "center", "transform": ax.transAxes}
        ax.text(0.5, 0.5, _why_undefined(part), bbox=box, **middle)
        return
    ends = np.abs(np.stack([known["change"] - known["low"], known["high"] - known["change"]]))
    ax.errorbar(places, known["change"], ends, fmt="o", capsize=4, label="here, 95 % interval")
    published = known["published_change"]
    ax.plot(places, published, "s", color="C1", fillstyle="none", label="published")
    long = max(len(str(value)) for value in known[x].values) > 6
    ax.set_xticks(places, [str(v) for v in known[x].values], rotation=20 if long else 0)
    ax.margins(x=0.2)


def _why_undefined(part: xr.Dataset) -> str:
    whole = bool(part["accuracy"].isnull().all())
    return "all runs diverged" if whole else "a run of every pair diverged"


def _named(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    return f"{value} x" if name == "n" else f"{TITLES.get(name, name)}: {value}"


def _in_order(values: Sequence[str | int | float]) -> list[str | int | float]:
    """Each once: numbers by size, names as they come."""
    unique = list(dict.fromkeys(values))
    return unique if isinstance(unique[0], str) else sorted(unique)
