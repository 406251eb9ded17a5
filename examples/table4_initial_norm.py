"""Do branches reduce the initial gradient, or only the mean over parameters? (table 4)

    python examples/table4_initial_norm.py [--scale cpu] [--data cifar10.npz]

Branches beside a network do not change its output, so they cannot change the gradient of its main
loss: over the backbone the norm stays what it was. Per parameter, branches counted, it falls by
the dilution factor sqrt(backbone / (backbone + branches)), which needs no data. Always measured on
32 x 32 images with a head of 100 classes, to have the paper's parameter counts (tables 7 and 8).
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import xarray as xr

from lab.results.options import arguments, exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Published, Row, compare
from lab.studies.initial_gradient import draw_reductions, measure_gradient
from lab.training.recipe import Recipe
from lab.training.scales import LABELS, plural, recipe_for, seeds_for

BRANCHES = (1, 20, 300)
PUBLISHED = {  # change of the initial gradient norm in percent, and its deviation over seeds
    "mlp": [(-29.86, 20.35), (-65.38, 1.95), (-90.40, 0.72)],
    "cnn": [(-16.64, 4.79), (-67.22, 5.52), (-90.18, 2.38)],
    "vit6": [(-3.40, 0.47), (-33.68, 3.62), (-68.78, 8.85)],
}
SAMPLES = {"smoke": 20, "cpu": 500, "paper": 500}


def main(argv: list[str] | None = None) -> None:
    """Measure every number of branches over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table4.nc").parse_args(argv)
    recipes = [recipe_for(backbone, args, "cifar100") for backbone in PUBLISHED]
    seeds = seeds_for(args, 1 if args.scale == "smoke" else 5)  # dilution does not vary
    samples = SAMPLES[args.scale]

    if args.show_recipe:
        numbers = [replace(recipe, n=n) for recipe in recipes for n in BRANCHES]
        exit_showing([asdict(replace(recipe, seed=seed)) for recipe in numbers for seed in seeds])

    by_backbone = [measure_backbone(recipe, seeds, samples) for recipe in recipes]
    label = xr.Variable("architecture", list(PUBLISHED), {"long_name": "backbone"})
    result = xr.concat(by_backbone, label, combine_attrs="drop_conflicts")

    rows = [row for name in PUBLISHED for row in rows_of(name, result.sel(architecture=name))]
    data = recipes[0].data.rsplit("/", 1)[-1]
    budget = f"{data}, {samples} images, {plural(len(seeds), 'seed')}"
    publish(result, draw_reductions(result, PUBLISHED), rows, output=args.output, budget=budget)


def measure_backbone(recipe: Recipe, seeds: Sequence[int], samples: int) -> xr.Dataset:
    """Measure the initial gradient of one backbone, over `seed` and `n`."""
    number_label = xr.Variable("n", list(BRANCHES), {"long_name": "branches at each layer"})
    by_seed = []
    for seed in seeds:
        by_number = [measure_gradient(recipe, n, seed, samples) for n in BRANCHES]
        by_seed.append(xr.concat(by_number, number_label, combine_attrs="drop_conflicts"))

    seed_label = xr.Variable("seed", list(seeds), {"long_name": "seed"})
    return xr.concat(by_seed, seed_label, combine_attrs="drop_conflicts")


def rows_of(name: str, result: xr.Dataset) -> list[Row]:
    """Compare dilution with the published reduction: it agrees within the published deviation."""
    rows = []
    for n, (published, deviation) in zip(BRANCHES, PUBLISHED[name], strict=True):
        here = result.sel(n=n)
        backbone_change = float(abs(here["change_backbone"]).max())

        # No training is involved, so that every scale decides.
        row = compare(
            f"{LABELS[name]}, {n} x, dilution / %",
            Published(published, deviation),
            here["reduction"].values.reshape(-1),
            note=f"the backbone's own norm changes by {backbone_change:.2g} %",
        )
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
