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
from lab.training.scales import LABELS, SMALL, recipe_for
from lab.training.strengths import TABLE_15

CONTROLS = {
    "capacity": {"connected": False},
    "heterogeneity": {"loss": "ce"},
    "random init": {"init": "default"},
}
# Accuracy in percent and its change, CIFAR-100; 1, 10 and 20 branches; MLP, CNN, ViT-6L.
PUBLISHED = {
    "capacity": {
        1: [(23.2, -0.1), (39.9, 0.7), (36.1, 0.1)],
        10: [(23.1, 0.0), (39.8, -0.1), (35.8, -0.3)],
        20: [(23.1, 0.0), (40.0, 0.4), (36.1, 0.0)],
    },
    "heterogeneity": {
        1: [(24.1, 0.8), (37.4, -2.1), (36.1, 0.2)],
        10: [(20.4, -2.7), (36.2, -3.4), (33.9, -1.9)],
        20: [(19.0, -4.3), (37.9, -1.9), (35.7, -0.3)],
    },
    "random init": {
        1: [(24.3, 1.0), (31.6, -7.9), (36.3, 0.3)],
        10: [(22.8, -0.3), (30.6, -9.6), (35.6, -0.5)],
        20: [(23.0, -0.3), (30.8, -9.1), (31.8, -4.0)],
    },
}


def main(argv: list[str] | None = None) -> None:
    """Train every cell over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table6.nc").parse_args(argv)

    cells = []
    for control, settings in CONTROLS.items():
        for n, row in PUBLISHED[control].items():
            if args.scale != "paper" and n != 20:
                continue

            for backbone, (accuracy, change) in zip(SMALL, row, strict=True):
                labels = {"control": f"{control}, {n} x", "architecture": LABELS[backbone]}

                # The paper gives the accuracy and its change: the plain one follows.
                published = round(accuracy - change, 1), accuracy

                plain = recipe_for(backbone, args, "cifar100")
                alpha, _ = TABLE_15[n][backbone]
                controlled = replace(plain, n=n, alpha=alpha, **settings)
                cells.append(Cell(labels, plain, controlled, published))

    study(cells, args)


if __name__ == "__main__":
    main()
