"""Do branches help most where images are few? (tables 9-11)

    python examples/table9_few_shot.py [--scale cpu] [--data cifar10.npz]

From 5 to 5000 stratified images of each class. The MLP has one branch at each layer (the paper
does not say; alpha 25 on CIFAR-10, 100 on CIFAR-100), the ViT-6L has 20 (alpha 1). Smaller scales
leave the larger sets out, and with `--data` all three tables use the same images.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell
from lab.studies.study import study
from lab.training.scales import recipe_for

TABLES = {  # backbone, data, n, alpha; then by images per class: plain, asymmetric in percent
    "MLP, CIFAR-10": (
        ("mlp", "cifar10", 1, 25.0),
        {
            10: (22.90, 22.99),
            50: (28.70, 28.97),
            100: (31.99, 33.30),
            500: (38.93, 39.44),
            1000: (43.13, 44.00),
            5000: (53.57, 53.74),
        },
    ),
    "MLP, CIFAR-100": (
        ("mlp", "cifar100", 1, 100.0),
        {
            5: (4.06, 5.22),
            10: (7.27, 6.97),
            20: (9.36, 9.49),
            50: (12.98, 13.98),
            100: (15.95, 16.97),
            200: (21.31, 22.25),
            500: (25.94, 26.65),
        },
    ),
    "ViT-6L, CIFAR-100": (
        ("vit6", "cifar100", 20, 1.0),
        {
            5: (5.10, 5.59),
            10: (7.92, 8.79),
            20: (9.67, 10.66),
            50: (15.61, 15.58),
            100: (20.29, 23.16),
            200: (28.00, 32.23),
            500: (43.53, 53.28),
        },
    ),
}
WHOLE_SET = {"cifar10": 5000, "cifar100": 500}  # training images per class
MOST_PER_CLASS = {"smoke": 10, "cpu": 100, "paper": 5000}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table9.nc").parse_args(argv)

    cells = []
    for table, ((backbone, data, n, alpha), row) in TABLES.items():
        for per_class, published in row.items():
            if per_class > MOST_PER_CLASS[args.scale]:
                continue

            # The whole set is asked for as such, so that the run is shared with other scripts.
            is_whole_set = args.scale == "paper" and per_class == WHOLE_SET[data]
            plain = recipe_for(backbone, args, data, per_class=None if is_whole_set else per_class)
            asymmetric = replace(plain, n=n, alpha=alpha)

            labels = {"table": table, "per_class": per_class}
            cells.append(Cell(labels, plain, asymmetric, published))

    study(cells, args)


if __name__ == "__main__":
    main()
