"""Is the response the same on ten classes? (tables 12 and 30)

    python examples/table12_cifar10.py [--scale cpu] [--data cifar10] [--architectures mlp]

MLP, CNN and ViT-6L, plain and with one branch at each layer, on CIFAR-10. The paper gives no
strengths for these runs, save that the MLP's was searched on a line from 0 to 50: `--search` does
so, on a held-out tenth of the training images, for 150 epochs; without it we take 25. The others
take the strength of table 15, rescaled from 100 to 10 classes, and its weight decay for one branch.
"""

import argparse
from dataclasses import replace

from lab.results.options import arguments
from lab.studies.alpha_search import LINE, search_line
from lab.studies.cells import Cell, Line, printed
from lab.studies.executing import executing
from lab.studies.study import study
from lab.studies.sweep import sweep
from lab.training.recipe import Recipe
from lab.training.scales import FIRST_SEED, LABELS, SMALL, recipe_for, strength_for
from lab.training.strengths import TABLE_15

PUBLISHED: dict[str, Line] = {  # in percent
    "mlp": (49.5, 0.3, 50.6, 0.4, "0.0001"),
    "cnn": (77.0, 0.6, 77.2, 1.0, "0.5371"),
    "vit6": (62.5, 0.7, 63.6, 0.4, "0.0068"),
}
MLP_ALPHA = 25.0  # the middle of the line
SEARCH_EPOCHS = 150


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = parse_args(argv)
    cells = []
    for backbone in args.architectures:
        plain = recipe_for(backbone, args, "cifar10")
        table_alpha, weight_decay = TABLE_15[1][backbone]
        if args.scale == "paper":
            plain = replace(plain, weight_decay=weight_decay)

        if backbone == "mlp":
            alpha, origin = mlp_strength(plain, args)
        else:
            alpha = strength_for(plain, table_alpha)
            origin = f"that of table 15, {table_alpha:g}, for these classes"

        cell = Cell(
            {"architecture": LABELS[backbone]},
            plain,
            replace(plain, n=1, alpha=alpha),
            **printed(PUBLISHED[backbone]),
            data="cifar10",
            remark=f"alpha {alpha:g}: {origin}",
        )
        cells.append(cell)

    study(cells, args)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__, output="results/table12.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL, default=list(SMALL))

    strengths = parser.add_mutually_exclusive_group()
    strengths.add_argument("--search", action="store_true", help="search the MLP's strength")
    strengths.add_argument("--alpha", type=float, help="the MLP's strength")
    return parser.parse_args(argv)


def mlp_strength(plain: Recipe, args: argparse.Namespace) -> tuple[float, str]:
    """Return the MLP's strength, and where it comes from in words."""
    if args.alpha:
        return args.alpha, "as asked for"

    # To show the recipe is no reason to search.
    if args.search and args.show_recipe:
        print(f"alpha {MLP_ALPHA:g} of the MLP stands for what {len(LINE)} earlier runs find")
    if not args.search or args.show_recipe:
        return MLP_ALPHA, "the middle of the paper's line"

    epochs = SEARCH_EPOCHS if args.scale == "paper" else plain.epochs
    searched = replace(plain, n=1, epochs=epochs, seed=FIRST_SEED)
    with executing(args) as executor:
        alpha, words = search_line(
            searched, lambda recipes: sweep(recipes, cache=args.cache, executor=executor)
        )
    print(words)
    return alpha, "the best of the line on a held-out tenth"


if __name__ == "__main__":
    main()
