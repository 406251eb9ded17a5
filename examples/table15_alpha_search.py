"""Can the search for alpha be spared? (tables 15-19, 22, 23)

    python examples/table15_alpha_search.py [--architectures mlp] [--n 1 20] [--data cifar10.npz]

The ten-point grid (CIFAR, table 15) and the two-stage search (ImageNet, tables 16-19), both on a
held-out tenth of the training images, against two rules that adapt the strength while they train,
and so need one run: `balance` (auxiliary gradient at half the main one's) and `gate`. By default
20 branches at each layer of the small backbones, at scale paper every number of table 15; for
tables 16-19: `--architectures resnet18 resnet50 vit_small vit_base --data /path/to/imagenet`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import xarray as xr

from lab.results.options import arguments, at_least_one, exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Row
from lab.studies.alpha_figures import draw_searches
from lab.studies.alpha_rows import rows_of, stage_rows
from lab.studies.alpha_search import (
    STAGE_EPOCHS,
    Runner,
    compare_searches,
    join_searches,
    search_rate_and_decay,
)
from lab.studies.conditions import conditions_of, obstacles, published_conditions
from lab.studies.executing import executing
from lab.studies.sweep import sweep
from lab.training.recipe import Recipe
from lab.training.scales import LABELS, PAPER, SMALL, budget_of, recipe_for, seeds_for
from lab.training.strengths import TABLE_15, TABLES_16_TO_19, published_strengths


def main(argv: list[str] | None = None) -> None:
    """Search every architecture over the seeds; print what each method finds, save and draw."""
    args = parse_args(argv)
    recipes = recipes_of(args)
    seeds = seeds_for(args, published_seeds(args.architectures) if args.scale == "paper" else 1)

    if args.show_recipe:
        searched = [asdict(recipe) | {"alpha": "searched"} for recipe in recipes.values()]
        exit_showing([settings | {"seed": seed} for settings in searched for seed in seeds])

    with executing(args) as executor:

        def run(requested: Sequence[Recipe]) -> list[xr.Dataset]:
            return sweep(requested, cache=args.cache, executor=executor)

        rates_and_decays = search_stages(recipes, run, args) if args.stages else {}
        searches = {
            place: compare_searches(recipe, seeds, run) for place, recipe in recipes.items()
        }

    rows = stage_rows() + rate_rows(recipes, rates_and_decays)
    published = {}
    for (label, n), recipe in recipes.items():
        alphas = published_strengths(recipe.backbone).get(n, ())
        published[label, n] = alphas

        data = "imagenet" if recipe.backbone in TABLES_16_TO_19 else "cifar100"
        paper = published_conditions(recipe.backbone, data, published_seeds(args.architectures))
        reasons = obstacles(conditions_of(recipe, len(seeds)), paper)
        rows += rows_of(label, n, searches[label, n], alphas, reasons)

    result = join_searches(searches)
    figure = draw_searches(searches, published)
    budget = budget_of(list(recipes.values()), len(seeds))
    publish(result, figure, rows, output=args.output, budget=budget)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; without `--architectures`, take those of the scale."""
    parser = arguments(__doc__, output="results/table15.nc")
    parser.add_argument("--architectures", nargs="+", choices=list(PAPER))
    parser.add_argument(
        "--stages", action="store_true", help="search learning rate and decay first, plain"
    )
    parser.add_argument("--n", nargs="+", type=at_least_one, help="branches at each layer")
    args = parser.parse_args(argv)

    default = SMALL if args.scale == "paper" else ("mlp",)
    args.architectures = list(dict.fromkeys(args.architectures or default))
    return args


def recipes_of(args: argparse.Namespace) -> dict[tuple[str, int], Recipe]:
    """Make a recipe for each architecture, by its label, and number of branches."""
    is_paper = args.scale == "paper"
    recipes = {}
    for name in args.architectures:
        data = "imagenet" if name in TABLES_16_TO_19 else "cifar100"
        numbers = args.n or (published_strengths(name) if is_paper else (20,))

        for n in numbers:
            recipe = replace(recipe_for(name, args, data), n=n)
            if is_paper and name in SMALL and n in TABLE_15:
                _, weight_decay = TABLE_15[n][name]
                recipe = replace(recipe, weight_decay=weight_decay)
            recipes[LABELS[name], n] = recipe
    return recipes


def search_stages(
    recipes: Mapping[tuple[str, int], Recipe], run: Runner, args: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Search rate and decay of each plain network once; the searches for alpha keep table 15's."""
    rates_and_decays = {}
    for (label, _), recipe in recipes.items():
        if label not in rates_and_decays:
            epochs = STAGE_EPOCHS if args.scale == "paper" else recipe.epochs
            rates_and_decays[label] = search_rate_and_decay(recipe, run, epochs=epochs)
    return rates_and_decays


def rate_rows(
    recipes: Mapping[tuple[str, int], Recipe], rates_and_decays: Mapping[str, tuple[float, float]]
) -> list[Row]:
    """Put the rates and decays that were found beside those of table 15; one seed, no verdict."""
    rows = []
    for (label, n), recipe in recipes.items():
        if label in rates_and_decays:
            rate, decay = rates_and_decays[label]
            note = "searched with one seed"
            rows.append(Row(f"{label}, {n} x, learning rate", recipe.lr, rate, note=note))
            rows.append(Row(f"{label}, {n} x, decay", recipe.weight_decay, decay, note=note))
    return rows


def published_seeds(architectures: Sequence[str]) -> int:
    """Say how many seeds the paper has: four on ImageNet, ten elsewhere."""
    return 4 if set(architectures) <= set(TABLES_16_TO_19) else 10


if __name__ == "__main__":
    main()
