"""Which stage of a hybrid network responds to branches? (tables 3, 24-26)

    python examples/table3_coatnet.py [--scale cpu] [--data cifar100]

CoAtNet-CIFAR with 1, 20, 100 and 300 branches at a convolutional stage (S2) or at a transformer
stage (S3), trained by the recipe of table 24, each with the strength that the paper found.
"""

from dataclasses import replace

from lab.report import arguments
from lab.scales import base
from lab.study import Cell, study

BASELINE = 75.34
PUBLISHED = {  # accuracy in percent on CIFAR-100, alpha
    "s2": {1: (75.26, 4.642), 20: (75.88, 0.215), 100: (75.59, 0.1), 300: (74.54, 0.1)},
    "s3": {1: (75.91, 21.544), 20: (76.76, 4.642), 100: (77.08, 4.642), 300: (76.82, 0.1)},
}
KINDS = {"s2": "S2 (convolution)", "s3": "S3 (transformer)"}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table3.nc").parse_args(argv)
    plain = base("coatnet", args, "cifar100")
    cells = []
    for stage, row in PUBLISHED.items():
        for n, (accuracy, alpha) in row.items():
            if args.scale == "smoke" and n in (20, 300):
                continue
            asymmetric = replace(plain, n=n, alpha=alpha, layers=stage)
            labels = {"stage": KINDS[stage], "n": n}
            cells.append(Cell(labels, plain, asymmetric, (BASELINE, accuracy)))
    study(cells, args, published_seeds=5)


if __name__ == "__main__":
    main()
