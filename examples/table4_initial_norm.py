"""What is it that branches reduce before training? (table 4)

    python examples/table4_initial_norm.py [--scale cpu] [--data cifar10.npz]

Branches beside a network do not change its output, so they cannot change the gradient of its main
loss: its norm over the backbone stays what it was. What the table reports as the change of the
"initial gradient norm" has a deviation over five seeds, and agrees with the Mean(Grad) of random
planes (tables 7, 8) whose directions have all parameter tensors equally long. Such planes are
measured here, those of `figure5_landscape.py`, with which this script shares them; beside them
stands what dilution alone predicts, sqrt(T / (T + M N)) by tensors, and by parameters.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import xarray as xr

from lab.results.options import arguments, exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Row, compare
from lab.studies.initial_gradient import draw_reductions, measure_gradient
from lab.studies.plane_options import add_plane_options, plane_budget, plane_recipe, words_of
from lab.studies.surface_rows import REDUCTIONS, obstacles_of
from lab.studies.surfaces import BRANCHES, measure_planes, statistics_of
from lab.training.recipe import Recipe
from lab.training.scales import LABELS, seeds_for

SAMPLES = {"smoke": 20, "cpu": 100, "paper": 500}  # of the gradient itself


def main(argv: list[str] | None = None) -> None:
    """Measure every number of branches over the seeds; print the table, save and draw."""
    parser = arguments(__doc__, output="results/table4.nc")
    add_plane_options(parser)
    args = parser.parse_args(argv)

    recipes = {name: plane_recipe(name, args) for name in REDUCTIONS}
    seeds = seeds_for(args, 5)
    if args.show_recipe:
        by_number = [replace(r, n=n) for r in recipes.values() for n in (0, *BRANCHES)]
        exit_showing([asdict(replace(run, seed=seed)) for run in by_number for seed in seeds])

    by_backbone, rows = [], []
    budgets = {name: plane_budget(name, args) for name in recipes}
    for name, recipe in recipes.items():
        planes = measure_planes(
            recipe, seeds, budgets[name], cache=args.cache, scalings=args.scaling[:1]
        )
        result = statistics_of(planes).isel(scaling=0)
        gradient = measure_gradients(recipe, seeds[0], SAMPLES[args.scale])
        by_backbone.append(
            xr.merge([result, gradient], join="outer", combine_attrs="drop_conflicts")
        )
        rows += rows_of(name, by_backbone[-1], obstacles_of(recipe, budgets[name]))

    label = xr.Variable("architecture", list(recipes), {"long_name": "backbone"})
    table = xr.concat(by_backbone, label, combine_attrs="drop_conflicts")
    figure = draw_reductions(table)
    publish(table, figure, rows, output=args.output, budget=words_of(recipes, budgets, seeds))


def measure_gradients(recipe: Recipe, seed: int, samples: int) -> xr.Dataset:
    """Measure the initial gradient of one backbone over `n`."""
    by_number = [measure_gradient(recipe, n, seed, samples) for n in BRANCHES]
    number_label = xr.Variable("n", list(BRANCHES), {"long_name": "branches at each layer"})
    gradient = xr.concat(by_number, number_label, combine_attrs="drop_conflicts")
    return gradient[["change_backbone", "dilution_by_parameter", "dilution_by_tensor"]]


def rows_of(name: str, result: xr.Dataset, obstacles: Sequence[str]) -> list[Row]:
    """Compare both readings with the published reduction: planes, and dilution by arithmetic."""
    rows = []
    for n, published in REDUCTIONS[name].items():
        result_for_n = result.sel(n=n)
        label = f"{LABELS[name]}, {n} x"

        by_tensor, by_parameter = (
            float(result_for_n[f"dilution_by_{kind}"]) for kind in ("tensor", "parameter")
        )
        change = float(result_for_n["change_backbone"])
        note = (
            f"dilution by tensors {by_tensor:.1f} %, by parameters "
            f"{by_parameter:.1f} %; the gradient's norm over the backbone changes by {change:.2g} %"
        )
        values = result_for_n["change"].sel(statistic="mean_grad").values
        quantity = f"{label}, change of Mean(Grad) of planes / %"
        rows.append(compare(quantity, published, values, obstacles=obstacles, note=note))
    return rows


if __name__ == "__main__":
    main()
