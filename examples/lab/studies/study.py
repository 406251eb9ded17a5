"""Plain against asymmetric training, cell by cell of a table: run, test, compare, draw."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import xarray as xr

from lab.results.options import exit_showing
from lab.results.publish import publish
from lab.results.statistics import paired
from lab.results.verdicts import SAME_SIGN, Criterion, Row, compare
from lab.studies.cells import TITLES, Cell, name_label, why_undefined
from lab.studies.draw_changes import draw_changes
from lab.studies.executing import executing
from lab.studies.sweep import sweep
from lab.training.scales import budget_of, seeds_for

# Branches without a loss have no effect, however long one trains: what is left is within a point.
NO_EFFECT = Criterion(budget_free=True, tolerance=1.0)


def study(cells: Sequence[Cell], args: argparse.Namespace, *, published_seeds: int = 10) -> None:
    """Make all of a table: train every cell over the seeds, test, print, draw, write.

    Args:
        cells: Of the table; all have the same labels, of which the last is drawn along x and the
            one before it panel by panel.
        args: From `lab.results.options.arguments`.
        published_seeds: How many seeds the paper has.
    """
    seeds = seeds_for(args, published_seeds)
    result = run_cells(cells, args, seeds)

    x, *other_labels = reversed(cells[0].labels)
    publish(
        result,
        draw_changes(result, x=x, hue=other_labels[0] if other_labels else None),
        rows_of(cells, result, args.scale),
        output=args.output,
        budget=budget_of([cell.plain for cell in cells], len(seeds)),
    )


def run_cells(cells: Sequence[Cell], args: argparse.Namespace, seeds: Sequence[int]) -> xr.Dataset:
    """Measure accuracy after the last epoch, and the statistics of the change, over the labels.

    With `--show-recipe` the recipes are printed instead, and the program ends.

    Returns:
        Dataset with `accuracy (training, ..., seed)` in percent, what
        `lab.results.statistics.paired` gives, and `published_change`, over the labels; cells that
        the table has not are NaN.
    """
    # Cell by cell: all plain runs, then all asymmetric ones.
    recipes = []
    for cell in cells:
        pairs = [cell.recipes(seed) for seed in seeds]
        recipes += [plain for plain, _ in pairs]
        recipes += [asymmetric for _, asymmetric in pairs]

    if args.show_recipe:
        exit_showing([asdict(recipe) for recipe in recipes])

    with executing(args) as executor:
        runs = sweep(recipes, cache=args.cache, executor=executor)
    percent = [100 * run["test_accuracy"].values[-1] for run in runs]
    accuracies = np.reshape(percent, (len(cells), 2, len(seeds)))

    accuracy, published = _arrange(cells, accuracies, seeds)
    result = paired(accuracy.sel(training="plain"), accuracy.sel(training="asymmetric"))
    result = result.drop_vars("training", errors="ignore")  # left over from the selection
    result["accuracy"] = accuracy.assign_attrs(long_name="test accuracy", units="%")
    result["published_change"] = published.assign_attrs(
        long_name="published difference, asymmetric - plain", units="%"
    )
    for name in accuracy.dims:
        result[name].attrs["long_name"] = TITLES.get(str(name), name)
    return result


def rows_of(cells: Sequence[Cell], result: xr.Dataset, scale: str) -> list[Row]:
    """Compare the change of accuracy in points, cell by cell."""
    rows = []
    for cell in cells:
        if cell.published is None:
            continue

        here = result.sel(dict(cell.labels))
        labels = ", ".join(name_label(name, value) for name, value in cell.labels.items())
        plain, asymmetric = cell.published
        row = compare(
            f"{labels}, change / points",
            round(asymmetric - plain, 4),
            float(here["change"]),
            scale=scale,
            criterion=SAME_SIGN if cell.asymmetric.connected else NO_EFFECT,
            note=_describe_change(here, cell.published),
        )
        rows.append(row)
    return rows


def _arrange(
    cells: Sequence[Cell], accuracies: np.ndarray, seeds: Sequence[int]
) -> tuple[xr.DataArray, xr.DataArray]:
    """Put accuracies `(cell, training, seed)` and published changes where the labels say."""
    coords: dict[str, list[str | int | float]] = {"training": ["plain", "asymmetric"]}
    for name in cells[0].labels:
        coords[name] = _sort_unique([cell.labels[name] for cell in cells])
    coords["seed"] = list(seeds)

    accuracy = xr.DataArray(np.nan, coords, list(coords)).copy()
    published = accuracy.isel(training=0, seed=0, drop=True).copy()
    for cell, cell_accuracies in zip(cells, accuracies, strict=True):
        accuracy.loc[dict(cell.labels)] = cell_accuracies
        if cell.published is not None:
            published.loc[dict(cell.labels)] = cell.published[1] - cell.published[0]
    return accuracy, published


def _describe_change(here: xr.Dataset, published: tuple[float, float]) -> str:
    note = why_undefined(here)
    if int(here["n_pairs"]):
        note = f"{float(here['mean_plain']):.1f} to {float(here['mean_asymmetric']):.1f} %"
    note += f", published {published[0]} to {published[1]} %"

    p = float(here["p"])
    return f"{note}; p = {p:.2g}" if np.isfinite(p) else note


def _sort_unique(values: Sequence[str | int | float]) -> list[str | int | float]:
    """Keep each value once: numbers by size, names as they come."""
    unique = list(dict.fromkeys(values))
    return unique if isinstance(unique[0], str) else sorted(unique)
