"""Does accuracy rise or fall with the number of branches? (table 1, figure 2)

    python examples/table1_dose_response.py [--scale cpu] [--data cifar10.npz] [--seeds 3]

MLP, CNN and ViT-6L, plain and with 1, 7, 10 and 20 branches at each layer, each with the strength
that the paper found (table 15). Below the paper's scale the CNN has 20 branches only (at scale
smoke the ViT-6L 1 and 20), and all the weight decay of 20 branches, so that one plain model serves
all.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell, Line, printed
from lab.studies.study import study
from lab.training.scales import LABELS, SMALL, recipe_for, remark_on_strength, strength_for
from lab.training.strengths import TABLE_15

# By number of branches and backbone, in percent, CIFAR-100.
PUBLISHED: dict[int, dict[str, Line]] = {
    1: {
        "mlp": (23.2, 0.3, 24.3, 0.3, "< 0.001"),
        "cnn": (39.5, 0.4, 30.8, 0.3, "< 0.001"),
        "vit6": (35.8, 1.0, 35.9, 0.5, "0.7773"),
    },
    7: {
        "mlp": (23.4, 0.5, 22.1, 0.3, "< 0.001"),
        "cnn": (39.8, 0.6, 31.7, 2.9, "< 0.001"),
        "vit6": (35.9, 0.8, 40.0, 2.1, "< 0.001"),
    },
    10: {
        "mlp": (23.3, 0.3, 21.7, 0.2, "< 0.001"),
        "cnn": (39.7, 0.6, 24.3, 2.1, "< 0.001"),
        "vit6": (36.0, 0.9, 41.8, 2.2, "< 0.001"),
    },
    20: {
        "mlp": (23.2, 0.3, 21.1, 0.3, "< 0.001"),
        "cnn": (39.7, 0.6, 33.6, 1.2, "< 0.001"),
        "vit6": (36.1, 1.0, 45.3, 1.3, "< 0.001"),
    },
}
ALL = tuple(PUBLISHED)
NUMBERS = {  # of branches
    "smoke": {"mlp": ALL, "cnn": (20,), "vit6": (1, 20)},
    "cpu": {"mlp": ALL, "cnn": (20,), "vit6": ALL},
    "paper": dict.fromkeys(LABELS, ALL),
}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    parser = arguments(__doc__, output="results/table1.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL, default=list(SMALL))
    args = parser.parse_args(argv)

    cells = []
    for backbone in args.architectures:
        label = LABELS[backbone]
        for n, row in PUBLISHED.items():
            if backbone not in row or n not in NUMBERS[args.scale][backbone]:
                continue

            # Below the paper's scale, one plain model serves all numbers of branches.
            plain = recipe_for(backbone, args, "cifar100")
            alpha, weight_decay = TABLE_15[n][backbone]
            if args.scale == "paper":
                plain = replace(plain, weight_decay=weight_decay)
            asymmetric = replace(plain, n=n, alpha=strength_for(plain, alpha))

            labels = {"architecture": label, "n": n}
            remark = remark_on_strength(plain, alpha)
            cell = Cell(labels, plain, asymmetric, **printed(row[backbone]), remark=remark)
            cells.append(cell)

    study(cells, args)


if __name__ == "__main__":
    main()
