"""Is it the static branches, or the active one? (table 29)

    python examples/table29_all_active.py [--scale cpu] [--data cifar100]

Three branches at each layer, all active or only one. The paper searched rate and decay for these
runs anew and does not give them, nor alpha: we keep those of table 15 for the nearest number, 7.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell, Line, printed
from lab.studies.study import study
from lab.training.scales import LABELS, SMALL, recipe_for, remark_on_strength, strength_for

ALPHAS = {"mlp": 0.1, "cnn": 0.1, "vit6": 4.642}
PUBLISHED: dict[str, dict[str, Line]] = {  # in percent, CIFAR-100
    "all": {
        "mlp": (24.6, 0.3, 20.7, 0.5, "0.0000"),
        "cnn": (39.9, 0.6, 36.2, 0.6, "0.0000"),
        "vit6": (36.2, 0.6, 42.1, 2.7, "0.0002"),
    },
    "one": {
        "mlp": (24.6, 0.3, 23.7, 0.6, "0.0008"),
        "cnn": (40.0, 0.8, 33.9, 0.9, "0.0000"),
        "vit6": (36.5, 0.7, 44.0, 5.9, "0.0045"),
    },
}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    parser = arguments(__doc__, output="results/table29.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL, default=list(SMALL))
    args = parser.parse_args(argv)

    cells = []
    for active, row in PUBLISHED.items():
        for backbone in args.architectures:
            labels = {"active": f"{active} of 3 active", "architecture": LABELS[backbone]}

            plain = recipe_for(backbone, args, "cifar100")
            n_active = "all" if active == "all" else 1
            alpha = ALPHAS[backbone]
            strength = strength_for(plain, alpha)
            asymmetric = replace(plain, n=3, alpha=strength, active=n_active)
            remark = remark_on_strength(plain, alpha)
            cell = Cell(labels, plain, asymmetric, **printed(row[backbone]), remark=remark)
            cells.append(cell)

    study(cells, args)


if __name__ == "__main__":
    main()
