"""Does accuracy rise or fall with the number of branches? (table 1, figure 2)

    python examples/table1_dose_response.py [--scale cpu] [--data cifar10.npz] [--seeds 3]

MLP, CNN and ViT-6L, plain and with 1, 7, 10 and 20 branches at each layer, each with the strength
that the paper found (table 15). Below the paper's scale the CNN has 20 branches only (at scale
smoke the ViT-6L 1 and 20), and all the weight decay of 20 branches, so that one plain model serves
all.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell
from lab.studies.study import study
from lab.training.scales import LABELS, recipe_for
from lab.training.strengths import TABLE_15

# By number of branches and backbone: plain, asymmetric; percent, CIFAR-100.
PUBLISHED = {
    1: {"mlp": (23.2, 24.3), "cnn": (39.5, 30.8), "vit6": (35.8, 35.9)},
    7: {"mlp": (23.4, 22.1), "cnn": (39.8, 31.7), "vit6": (35.9, 40.0)},
    10: {"mlp": (23.3, 21.7), "cnn": (39.7, 24.3), "vit6": (36.0, 41.8)},
    20: {"mlp": (23.2, 21.1), "cnn": (39.7, 33.6), "vit6": (36.1, 45.3)},
}
ALL = tuple(PUBLISHED)
NUMBERS = {  # of branches
    "smoke": {"mlp": ALL, "cnn": (20,), "vit6": (1, 20)},
    "cpu": {"mlp": ALL, "cnn": (20,), "vit6": ALL},
    "paper": dict.fromkeys(LABELS, ALL),
}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table1.nc").parse_args(argv)

    cells = []
    for backbone, label in LABELS.items():
        for n, row in PUBLISHED.items():
            if backbone not in row or n not in NUMBERS[args.scale][backbone]:
                continue

            # Below the paper's scale, one plain model serves all numbers of branches.
            plain = recipe_for(backbone, args, "cifar100")
            alpha, weight_decay = TABLE_15[n][backbone]
            if args.scale == "paper":
                plain = replace(plain, weight_decay=weight_decay)
            asymmetric = replace(plain, n=n, alpha=alpha)

            labels = {"architecture": label, "n": n}
            cells.append(Cell(labels, plain, asymmetric, row[backbone]))

    study(cells, args)


if __name__ == "__main__":
    main()
