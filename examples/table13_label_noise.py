"""Do branches keep an MLP from learning wrong labels? (tables 13 and 14)

    python examples/table13_label_noise.py [--scale cpu] [--data cifar10.npz]

Labels are flipped to another class with probability 0 to 90 %; one branch at each layer, as the
paper does not say otherwise (alpha 25 on CIFAR-10, 100 on CIFAR-100).
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell
from lab.studies.study import study
from lab.training.scales import recipe_for

LEVELS = range(0, 100, 10)
TABLES = {  # data, alpha; then plain and asymmetric in percent, by level
    "MLP, CIFAR-10": (
        ("cifar10", 25.0),
        (53.52, 51.82, 49.92, 47.69, 44.96, 42.13, 38.35, 32.94, 23.69, 10.43),
        (53.74, 52.08, 50.22, 48.42, 45.90, 42.66, 39.23, 32.05, 22.94, 10.13),
    ),
    "MLP, CIFAR-100": (
        ("cifar100", 100.0),
        (25.64, 24.76, 23.83, 22.54, 20.97, 19.08, 16.52, 12.76, 8.16, 3.60),
        (26.00, 25.36, 24.29, 23.09, 21.82, 20.15, 17.97, 14.96, 9.56, 3.49),
    ),
}
MEASURED_LEVELS = {"smoke": (0, 40, 90), "cpu": (0, 20, 40, 60, 80), "paper": tuple(LEVELS)}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table13.nc").parse_args(argv)

    cells = []
    for table, ((data, alpha), *columns) in TABLES.items():
        for percent, *published in zip(LEVELS, *columns, strict=True):
            if percent not in MEASURED_LEVELS[args.scale]:
                continue

            labels = {"table": table, "flipped": percent}
            plain = recipe_for("mlp", args, data, label_noise=percent / 100)
            asymmetric = replace(plain, n=1, alpha=alpha)
            cells.append(Cell(labels, plain, asymmetric, tuple(published)))

    study(cells, args)


if __name__ == "__main__":
    main()
