"""Plain against asymmetric training, cell by cell of a table: run, test, compare, draw."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import xarray as xr

from lab.results.options import exit_showing
from lab.results.publish import publish
from lab.results.statistics import describe_test, paired
from lab.results.verdicts import Published, Row, compare, join_notes
from lab.studies.cells import TITLES, Cell, Protocol, name_label, why_undefined
from lab.studies.conditions import conditions_of, obstacles, published_conditions
from lab.studies.draw_changes import draw_changes
from lab.studies.executing import executing
from lab.studies.sweep import sweep
from lab.training.scales import budget_of, seeds_for

KINDS = ("plain", "asymmetric")
PROTOCOLS: dict[Protocol, str] = {"last": "last epoch", "best": "best epoch"}


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
        rows_of(cells, result, published_seeds),
        output=args.output,
        budget=budget_of([cell.plain for cell in cells], len(seeds)),
    )


def run_cells(cells: Sequence[Cell], args: argparse.Namespace, seeds: Sequence[int]) -> xr.Dataset:
    """Measure accuracy after the last and at the best epoch, and the statistics of the change.

    With `--show-recipe` the recipes are printed instead, and the program ends.

    Returns:
        Dataset over the labels with `last_accuracy` and `best_accuracy (training, ..., seed)` in
        percent; `accuracy`, that of the two which is the table's protocol; what
        `lab.results.statistics.paired` gives for it; and `published_change`. Cells that the table
        has not are NaN.
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
    by_protocol = {}
    for protocol, title in PROTOCOLS.items():
        percent = [100 * accuracy_of(run, protocol) for run in runs]
        accuracies = np.reshape(percent, (len(cells), 2, len(seeds)))
        by_protocol[protocol] = _arrange(cells, accuracies, seeds).assign_attrs(
            long_name=f"test accuracy, {title}", units="%"
        )

    # One table has one protocol.
    accuracy = by_protocol[cells[0].protocol]
    result = paired(accuracy.sel(training="plain"), accuracy.sel(training="asymmetric"))
    result = result.drop_vars("training", errors="ignore")  # left over from the selection
    result["accuracy"] = accuracy
    for protocol, values in by_protocol.items():
        result[f"{protocol}_accuracy"] = values
    result["published_change"] = _arrange_published(cells, accuracy)
    for name in accuracy.dims:
        result[name].attrs["long_name"] = TITLES.get(str(name), name)
    return result


def rows_of(cells: Sequence[Cell], result: xr.Dataset, published_seeds: int | None) -> list[Row]:
    """Compare both accuracies and their change, cell by cell.

    Args:
        cells: Of the table.
        result: From `run_cells`.
        published_seeds: How many seeds the paper has.
    """
    rows = []
    for cell in cells:
        if cell.published is None:
            continue

        ours = result.sel(dict(cell.labels))
        labels = ", ".join(name_label(name, value) for name, value in cell.labels.items())
        backbone, n_seeds = cell.plain.backbone, result.sizes["seed"]
        paper = published_conditions(backbone, cell.data, published_seeds, cell.per_class)
        reasons = obstacles(conditions_of(cell.plain, n_seeds), paper)

        plain, asymmetric = (ours["accuracy"].sel(training=kind).values for kind in KINDS)
        numbers = published_numbers(cell)
        for kind, values in (("plain", plain), ("asymmetric", asymmetric)):
            row = compare(
                f"{labels}, {kind} / %",
                numbers[kind],
                values,
                obstacles=reasons,
                note=join_notes(_other_protocol(ours, cell.protocol, kind), cell.remark),
            )
            rows.append(row)

        undefined = "" if int(ours["n_pairs"]) else why_undefined(ours)
        row = compare(
            f"{labels}, change / points",
            numbers["change"],
            asymmetric - plain,
            obstacles=reasons,
            note=join_notes(
                undefined,
                describe_test(ours),
                _other_protocol(ours, cell.protocol, "change"),
                cell.remark,
            ),
        )
        rows.append(row)
    return rows


def published_numbers(cell: Cell) -> dict[str, Published]:
    """Return what the paper prints of a cell: both accuracies, and their change.

    The change has no printed deviation. Its own is that of two independent means: the root of the
    sum of both squares, which is too large if the paper's pairs are correlated.
    """
    assert cell.published is not None
    plain, asymmetric = cell.published
    deviations = cell.deviations or (None, None)

    combined = None
    if cell.deviations is not None:
        combined = round(math.hypot(*cell.deviations), 2)
    return {
        "plain": Published(plain, deviations[0]),
        "asymmetric": Published(asymmetric, deviations[1]),
        "change": Published(round(asymmetric - plain, 4), combined, cell.p),
    }


def accuracy_of(run: xr.Dataset, protocol: Protocol) -> float:
    """Return a run's test accuracy, after the last or at the best epoch; NaN if it diverged."""
    curve = run["test_accuracy"].values
    return float(curve[-1] if protocol == "last" or np.isnan(curve[-1]) else curve.max())


def _other_protocol(ours: xr.Dataset, protocol: Protocol, quantity: str) -> str:
    """Say what the protocol gives that the verdict is not about."""
    other_protocol: Protocol = "best" if protocol == "last" else "last"
    by_kind = ours[f"{other_protocol}_accuracy"].mean("seed")
    plain, asymmetric = (float(by_kind.sel(training=kind)) for kind in KINDS)
    value = {"plain": plain, "asymmetric": asymmetric, "change": asymmetric - plain}[quantity]
    return f"{PROTOCOLS[other_protocol]}: {value:.2f}" if math.isfinite(value) else ""


def _arrange(cells: Sequence[Cell], accuracies: np.ndarray, seeds: Sequence[int]) -> xr.DataArray:
    """Put accuracies `(cell, training, seed)` where the labels say."""
    coords: dict[str, list[str | int | float]] = {"training": list(KINDS)}
    for name in cells[0].labels:
        coords[name] = _sort_unique([cell.labels[name] for cell in cells])
    coords["seed"] = list(seeds)

    accuracy = xr.DataArray(np.nan, coords, list(coords)).copy()
    for cell, cell_accuracies in zip(cells, accuracies, strict=True):
        accuracy.loc[dict(cell.labels)] = cell_accuracies
    return accuracy


def _arrange_published(cells: Sequence[Cell], accuracy: xr.DataArray) -> xr.DataArray:
    published = accuracy.isel(training=0, seed=0, drop=True).copy()
    published[:] = np.nan
    for cell in cells:
        if cell.published is not None:
            published.loc[dict(cell.labels)] = cell.published[1] - cell.published[0]
    attributes = {"long_name": "published difference, asymmetric - plain", "units": "%"}
    return published.assign_attrs(attributes)


def _sort_unique(values: Sequence[str | int | float]) -> list[str | int | float]:
    """Keep each value once: numbers by size, names as they come."""
    unique = list(dict.fromkeys(values))
    return unique if isinstance(unique[0], str) else sorted(unique)
