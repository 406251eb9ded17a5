"""Can the search for alpha be spared? (tables 15-19, 22, 23)

    python examples/table15_alpha_search.py [--architectures mlp] [--n 1 20] [--data cifar10.npz]

The ten-point grid (CIFAR, table 15) and the two-stage search (ImageNet, tables 16-19), both on a
held-out tenth of the training images, against two rules that adapt the strength while they train,
and so need one run: `balance` (auxiliary gradient at half the main one's) and `gate`. By default
20 branches at each layer of the small backbones, at scale paper every number of table 15; for
tables 16-19: `--architectures resnet18 resnet50 vit_small vit_base --data /path/to/imagenet`.
"""

from dataclasses import replace

import xarray as xr

from lab.results.publish import arguments, at_least_one, publish
from lab.studies.alpha_rows import rows_of, stage_rows
from lab.studies.alpha_search import compare_searches, draw_searches, join_searches
from lab.studies.sweep import executing, sweep
from lab.training.recipe import Recipe
from lab.training.scales import LABELS, PAPER, SMALL, base, budget_of, seeds
from lab.training.strengths import TABLE_15, TABLES_16_TO_19, published_strengths


def main(argv: list[str] | None = None) -> None:
    """Search every architecture over the seeds; print what each method finds, save and draw."""
    parser = arguments(__doc__, output="results/table15.nc")
    parser.add_argument("--architectures", nargs="+", choices=list(PAPER))
    parser.add_argument("--n", nargs="+", type=at_least_one, help="branches at each layer")
    args = parser.parse_args(argv)
    full = args.scale == "paper"
    names = args.architectures or (SMALL if full else ("mlp",))
    chosen = seeds(args, (4 if set(names) <= set(TABLES_16_TO_19) else 10) if full else 1)
    recipes = {}
    for name in dict.fromkeys(names):
        for n in args.n or (published_strengths(name) if full else (20,)):
            data = "imagenet" if name in TABLES_16_TO_19 else "cifar100"
            recipe = replace(base(name, args, data), n=n)
            if full and name in SMALL and n in TABLE_15:
                recipe = replace(recipe, weight_decay=TABLE_15[n][name][1])
            recipes[LABELS[name], n] = recipe
    with executing(args) as executor:

        def run(wanted: list[Recipe]) -> list[xr.Dataset]:
            return sweep(wanted, cache=args.cache, executor=executor)

        found = {place: compare_searches(recipe, chosen, run) for place, recipe in recipes.items()}
    result = join_searches(found)
    published, rows = {}, stage_rows()
    for (label, n), recipe in recipes.items():
        published[label, n] = published_strengths(recipe.backbone).get(n, ())
        rows += rows_of(label, n, found[label, n], published[label, n], args.scale)
    budget = budget_of(list(recipes.values()), len(chosen))
    publish(result, draw_searches(found, published), rows, output=args.output, budget=budget)


if __name__ == "__main__":
    main()
