"""Do branches smooth the loss surface, or do they only dilute directions? (figure 5, tables 7, 8)

    python examples/figure5_landscape.py [--scale cpu] [--data cifar10.npz] [--backbone mlp cnn]

A plane around the initialisation, plain and with 1, 20 and 300 branches at each layer, along
Gaussian directions over backbone and branches. The paper says "normalized to unit variance". With
`--scaling tensor` every parameter tensor of a direction is equally long: what counts is then the
number of tensors, and the published changes *and* the published values follow. With `--scaling
unit` all numbers are one vector: what counts is the number of parameters, and the values come out
thirty times too small for the MLP. The table is that of the first scaling. Over the backbone alone
branches cannot change anything, since they do not change its output.

Nothing is trained, so that the paper's budget is its 51 x 51 points and 500 images. Its data are
CIFAR-10 for the MLP and CIFAR-100 for CNN and ViT-6L; images of other numbers of classes get labels
at random, and no verdict. Also writes a page to turn the first backbone's plain surface.
"""

import argparse
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import xarray as xr

import landscape
from lab.results.files import write_atomically
from lab.results.options import arguments, exit_showing
from lab.results.publish import publish
from lab.studies.plane_options import add_plane_options, plane_budget, plane_recipe, words_of
from lab.studies.surface_rows import obstacles_of, surface_rows
from lab.studies.surfaces import BRANCHES, CLASSES, measure_planes, statistics_of
from lab.training.scales import LABELS, seeds_for


def main(argv: list[str] | None = None) -> None:
    """Measure every backbone, number of branches and seed; print the table, save and draw."""
    args = parse_args(argv)
    recipes = {name: plane_recipe(name, args) for name in dict.fromkeys(args.backbone)}
    seeds = seeds_for(args, 5)
    if args.show_recipe:
        by_number = [replace(r, n=n) for r in recipes.values() for n in (0, *BRANCHES)]
        exit_showing([asdict(replace(run, seed=seed)) for run in by_number for seed in seeds])

    figure = plt.figure(figsize=(16.8, 4.4 * len(recipes)), layout="constrained")
    panels = figure.subfigures(len(recipes), squeeze=False)[:, 0]
    results = []
    rows = []
    pages = []
    budgets = {name: plane_budget(name, args) for name in recipes}

    for panel, (name, recipe) in zip(panels, recipes.items(), strict=True):
        budget = budgets[name]
        planes = measure_planes(recipe, seeds, budget, cache=args.cache, scalings=args.scaling)
        results.append(statistics_of(planes))

        obstacles = obstacles_of(recipe, budget)
        rows += surface_rows(recipe, results[-1].isel(scaling=0), obstacles)

        first = planes.isel(scaling=0, seed=0)
        surfaces = {title_of(name, n): first.sel(n=n) for n in first["n"].values.tolist()}
        landscape.plot_surfaces(surfaces, figure=panel)
        pages.append(landscape.html_surface(first.sel(n=0)))

    architecture = xr.Variable("architecture", list(recipes), {"long_name": "backbone"})
    result = xr.concat(results, architecture, combine_attrs="drop_conflicts")
    publish(result, figure, rows, output=args.output, budget=words_of(recipes, budgets, seeds))
    write_atomically(
        {args.output.with_suffix(".html"): lambda path: path.write_text(pages[0], encoding="utf-8")}
    )


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__, output="results/figure5.nc")
    parser.add_argument("--backbone", nargs="+", choices=list(CLASSES), default=list(CLASSES))
    add_plane_options(parser)
    return parser.parse_args(argv)


def title_of(name: str, n: int) -> str:
    """Write a backbone with so many branches."""
    return f"{LABELS[name]}, {n} x" if n else f"{LABELS[name]}, plain"


if __name__ == "__main__":
    main()
