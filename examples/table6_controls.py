"""What if branches are detached, homogeneous, or not orthogonal? (table 6)

    python examples/table6_controls.py [--scale cpu] [--data cifar100]

Capacity: the branches are there but not in the loss, so their effect is zero by construction; the
published changes there show how much two runs differ anyway. Heterogeneity: softmax in place of
sigmoid losses. Random: the default initialisation in place of an orthogonal one. Strengths are
those of table 15; the paper gives none for the controls.
"""

from dataclasses import replace

from lab.results.options import arguments
from lab.studies.cells import Cell
from lab.studies.study import study
from lab.training.scales import LABELS, SMALL, recipe_for, remark_on_strength, strength_for
from lab.training.strengths import TABLE_15

CONTROLS = {
    "capacity": {"connected": False},
    "heterogeneity": {"loss": "ce"},
    "random init": {"init": "default"},
}
# Accuracy in percent, its +-, its change and the stars beside it (one: p < 0.05, two: p < 0.01,
# three: p < 0.001); CIFAR-100; 1, 10 and 20 branches; MLP, CNN, ViT-6L.
PUBLISHED: dict[str, dict[int, list[tuple[float, float, float, str]]]] = {
    "capacity": {
        1: [(23.2, 0.3, -0.1, ""), (39.9, 0.7, 0.7, ""), (36.1, 1.1, 0.1, "")],
        10: [(23.1, 0.4, 0.0, ""), (39.8, 0.8, -0.1, ""), (35.8, 1.2, -0.3, "")],
        20: [(23.1, 0.4, 0.0, ""), (40.0, 1.0, 0.4, ""), (36.1, 1.1, 0.0, "")],
    },
    "heterogeneity": {
        1: [(24.1, 0.3, 0.8, "**"), (37.4, 0.4, -2.1, "***"), (36.1, 0.5, 0.2, "")],
        10: [(20.4, 0.6, -2.7, "***"), (36.2, 0.9, -3.4, "***"), (33.9, 0.6, -1.9, "***")],
        20: [(19.0, 0.5, -4.3, "***"), (37.9, 1.0, -1.9, "***"), (35.7, 0.9, -0.3, "")],
    },
    "random init": {
        1: [(24.3, 0.4, 1.0, "***"), (31.6, 0.7, -7.9, "***"), (36.3, 0.9, 0.3, "")],
        10: [(22.8, 0.3, -0.3, ""), (30.6, 1.0, -9.6, "***"), (35.6, 1.1, -0.5, "")],
        20: [(23.0, 0.2, -0.3, ""), (30.8, 0.8, -9.1, "***"), (31.8, 1.1, -4.0, "***")],
    },
}
# Of the plain networks, which table 6 leaves to table 1 (at 20 x; at others 0.3 to 1.0 as well).
PLAIN_DEVIATIONS = {"mlp": 0.3, "cnn": 0.6, "vit6": 1.0}
STARS = {"": "", "*": "< 0.05", "**": "< 0.01", "***": "< 0.001"}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    parser = arguments(__doc__, output="results/table6.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL, default=list(SMALL))
    args = parser.parse_args(argv)

    cells = []
    for control, settings in CONTROLS.items():
        for n, row in PUBLISHED[control].items():
            if args.scale != "paper" and n != 20:
                continue

            by_backbone = dict(zip(SMALL, row, strict=True))
            for backbone in args.architectures:
                accuracy, deviation, change, stars = by_backbone[backbone]
                labels = {"control": f"{control}, {n} x", "architecture": LABELS[backbone]}

                # The paper gives the accuracy and its change: the plain one follows.
                published = round(accuracy - change, 1), accuracy

                # Below the paper's scale, one plain model serves all numbers of branches.
                plain = recipe_for(backbone, args, "cifar100")
                alpha, weight_decay = TABLE_15[n][backbone]
                if args.scale == "paper":
                    plain = replace(plain, weight_decay=weight_decay)

                strength = strength_for(plain, alpha)
                controlled = replace(plain, n=n, alpha=strength, **settings)
                cell = Cell(
                    labels,
                    plain,
                    controlled,
                    published,
                    deviations=(PLAIN_DEVIATIONS[backbone], deviation),
                    p=STARS[stars],
                    remark=remark_on_strength(plain, alpha),
                )
                cells.append(cell)

    study(cells, args)


if __name__ == "__main__":
    main()
