"""Which stage of a hybrid network responds to branches? (tables 3, 24-26)

    python examples/table3_coatnet.py [--scale cpu] [--data cifar100]

CoAtNet-CIFAR with 1, 20, 100 and 300 branches at a convolutional stage (S2) or at a transformer
stage (S3), trained by the recipe of table 24, each with the strength that the paper found. Below
the changes (table 3), the accuracy of each seed (table 26).
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import Row
from lab.studies.cells import Cell
from lab.studies.draw_changes import draw_changes
from lab.studies.study import rows_of, run_cells
from lab.training.scales import (
    FIRST_SEED,
    budget_of,
    recipe_for,
    remark_on_strength,
    seeds_for,
    strength_for,
)
from lab.training.strengths import TABLE_26

PUBLISHED_SEEDS = 5
BASELINE, BASELINE_DEVIATION = 75.34, 0.20
PUBLISHED = {  # table 26: accuracy in percent on CIFAR-100, seeds 42 to 46; their means: table 3
    "s2": {
        1: (75.63, 75.34, 75.94, 75.18, 74.21),
        20: (75.96, 75.90, 75.79, 76.05, 75.70),
        100: (75.34, 75.38, 76.32, 75.54, 75.39),
        300: (74.41, 73.97, 74.42, 75.20, 74.70),
    },
    "s3": {
        1: (75.94, 76.14, 75.64, 75.60, 76.21),
        20: (76.85, 76.43, 77.07, 76.31, 77.14),
        100: (77.41, 77.32, 76.95, 76.74, 76.96),
        300: (76.72, 77.22, 76.96, 76.76, 76.44),
    },
}
# Of table 3; table 26 prints 0.66, 0.14, 0.41, 0.49; 0.28, 0.36, 0.26, 0.30 for the same seeds.
DEVIATIONS = {
    "s2": {1: 0.59, 20: 0.14, 100: 0.44, 300: 0.48},
    "s3": {1: 0.28, 20: 0.37, 100: 0.27, 300: 0.30},
}
P_VALUES = {  # the stars of table 3
    "s2": {1: "", 20: "< 0.01", 100: "", 300: "< 0.05"},
    "s3": {1: "< 0.01", 20: "< 0.001", 100: "< 0.001", 300: "< 0.001"},
}
KINDS = {"s2": "S2 (convolution)", "s3": "S3 (transformer)"}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table3.nc").parse_args(argv)

    cells = cells_of(args)
    seeds = seeds_for(args, PUBLISHED_SEEDS)
    result = run_cells(cells, args, seeds)

    rows = rows_of(cells, result, PUBLISHED_SEEDS) + seed_rows(cells, result)
    budget = budget_of([cell.plain for cell in cells], len(seeds))
    figure = draw_changes(result, x="n", hue="stage")
    publish(result, figure, rows, output=args.output, budget=budget)


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """Make cells of both stages with every number of branches; with two of them at scale smoke."""
    plain = recipe_for("coatnet", args, "cifar100")
    cells = []
    for stage, row in PUBLISHED.items():
        for n, accuracies in row.items():
            if args.scale == "smoke" and n in (20, 300):
                continue

            labels = {"stage": KINDS[stage], "n": n}
            published = BASELINE, round(float(np.mean(accuracies)), 2)
            alpha = TABLE_26[stage][n]
            strength = strength_for(plain, alpha)
            asymmetric = replace(plain, n=n, alpha=strength, layers=stage)
            cell = Cell(
                labels,
                plain,
                asymmetric,
                published,
                deviations=(BASELINE_DEVIATION, DEVIATIONS[stage][n]),
                p=P_VALUES[stage][n],
                remark=remark_on_strength(plain, alpha),
            )
            cells.append(cell)
    return cells


def seed_rows(cells: Sequence[Cell], result: xr.Dataset) -> list[Row]:
    """Put the accuracy of each seed beside table 26.

    Without a verdict: a single run has no interval, and another machine has another random stream.
    """
    rows = []
    for cell in cells:
        stage, n = cell.asymmetric.layers, cell.asymmetric.n
        published = PUBLISHED[stage][n]
        accuracies = result["accuracy"].sel(dict(cell.labels)).sel(training="asymmetric")
        for seed, number in enumerate(published, start=FIRST_SEED):
            if seed in accuracies["seed"]:
                title = f"{cell.labels['stage']}, {n} x, seed {seed}, accuracy / %"
                accuracy = float(accuracies.sel(seed=seed))
                rows.append(Row(title, number, accuracy, note="a single run has no interval"))
    return rows


if __name__ == "__main__":
    main()
