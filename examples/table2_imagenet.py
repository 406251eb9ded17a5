"""Do the gains carry over to ImageNet-1k? (tables 2, 16-21)

    python examples/table2_imagenet.py --scale paper --data /path/to/imagenet

ResNet-18/50, ViT-Small and ViT-B/16, plain and with 1, 10 and 20 branches at the points of table
21, trained by the recipes of table 20, each seed with the strength found for it (tables 16-19).
Scale smoke sends small digits through the same code, on the two smaller networks.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell
from lab.studies.study import study
from lab.training.scales import LABELS, recipe_for
from lab.training.strengths import TABLES_16_TO_19

BRANCHES = (1, 10, 20)
PUBLISHED_SEEDS = range(42, 46)
PUBLISHED = {  # top-1 accuracy in percent: baseline, then with the branches
    "resnet18": (68.23, 68.33, 68.29, 68.37),
    "resnet50": (73.83, 73.55, 73.75, 73.76),
    "vit_small": (69.13, 70.16, 70.27, 70.35),
    "vit_base": (66.75, 68.34, 68.83, 69.00),
}
DEVIATIONS = {  # what stands behind the "+-" of each
    "resnet18": (0.20, 0.10, 0.10, 0.13),
    "resnet50": (0.09, 0.17, 0.11, 0.21),
    "vit_small": (0.14, 0.09, 0.18, 0.29),
    "vit_base": (0.13, 0.64, 0.27, 0.19),
}
P_VALUES = {  # the stars
    "resnet18": ("", "", ""),
    "resnet50": ("< 0.01", "", ""),
    "vit_small": ("< 0.001", "< 0.01", "< 0.01"),
    "vit_base": ("< 0.05", "< 0.001", "< 0.001"),
}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    parser = arguments(__doc__, output="results/table2.nc")
    parser.add_argument("--architectures", nargs="+", choices=list(PUBLISHED))
    args = parser.parse_args(argv)

    is_smoke = args.scale == "smoke"
    default_backbones = ("resnet18", "vit_small") if is_smoke else PUBLISHED
    cells = []
    for backbone in args.architectures or default_backbones:
        plain = recipe_for(backbone, args, "imagenet")
        baseline, *accuracies = PUBLISHED[backbone]

        plain_deviation, *deviations = DEVIATIONS[backbone]
        columns = zip(BRANCHES, accuracies, deviations, P_VALUES[backbone], strict=True)

        for n, accuracy, deviation, p in columns:
            if is_smoke and n == 10:
                continue

            # Seeds beyond the published four take the lower median of their strengths.
            alphas = TABLES_16_TO_19[backbone][n]
            alpha_by_seed = dict(zip(PUBLISHED_SEEDS, alphas, strict=True))
            asymmetric = replace(plain, n=n, alpha=sorted(alphas)[1])

            labels = {"architecture": LABELS[backbone], "n": n}
            published = baseline, accuracy
            cell = Cell(
                labels,
                plain,
                asymmetric,
                published,
                alpha_by_seed,
                deviations=(plain_deviation, deviation),
                p=p,
                data="imagenet",
            )
            cells.append(cell)

    study(cells, args, published_seeds=len(PUBLISHED_SEEDS))


if __name__ == "__main__":
    main()
