"""Is it the static branches, or the active one? (table 29)

    python examples/table29_all_active.py [--scale cpu] [--data cifar100]

Three branches at each layer, all active or only one. The paper searched rate and decay for these
runs anew and does not give them, nor alpha: we keep those of table 15 for the nearest number, 7.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell
from lab.studies.study import study
from lab.training.scales import LABELS, recipe_for

ALPHAS = {"mlp": 0.1, "cnn": 0.1, "vit6": 4.642}
PUBLISHED = {  # plain and asymmetric in percent, CIFAR-100
    "all": {"mlp": (24.6, 20.7), "cnn": (39.9, 36.2), "vit6": (36.2, 42.1)},
    "one": {"mlp": (24.6, 23.7), "cnn": (40.0, 33.9), "vit6": (36.5, 44.0)},
}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table29.nc").parse_args(argv)

    cells = []
    for active, row in PUBLISHED.items():
        for backbone, published in row.items():
            labels = {"active": f"{active} of 3 active", "architecture": LABELS[backbone]}

            plain = recipe_for(backbone, args, "cifar100")
            n_active = "all" if active == "all" else 1
            asymmetric = replace(plain, n=3, alpha=ALPHAS[backbone], active=n_active)
            cells.append(Cell(labels, plain, asymmetric, published))

    study(cells, args)


if __name__ == "__main__":
    main()
