"""Does asymmetric training spread the attention of a vision transformer? (figures 6, 9; table 27)

    python examples/figure6_attention.py [--scale cpu] [--data cifar10.npz]

Attention of the class token of a ViT-6L on test images, plain and with 20 branches at each block,
along training. The paper's epochs 20, 60 and 100 become a fifth, three fifths and all of the
epochs where there are fewer than 100.
"""

from collections.abc import Sequence

import xarray as xr

import attention
from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import Row, compare, printed_as
from lab.studies.main_runs import (
    KINDS,
    main_runs,
    obstacles_by_backbone,
    publish_nothing_seen,
)
from lab.training.scales import recipe_for

READING = "20 branches, all heads of the last layer: the paper says neither"
DIGITS = {"peak": 3, "entropy": 2, "gini": 3, "coverage": 2}  # after the point, in table 27
FIGURE_9 = {"coverage": 6.8, "peak": -12.6, "gini": -6.7}  # change in percent, its caption
STAGES = (20, 60, 100)  # epochs, or percent of fewer
PUBLISHED = {  # table 27: plain, asymmetric; at the three stages
    "peak": ([0.092, 0.063, 0.051], [0.053, 0.049, 0.045]),
    "entropy": ([3.73, 3.89, 3.97], [4.02, 4.03, 4.05]),
    "gini": ([0.471, 0.415, 0.374], [0.254, 0.287, 0.302]),
    "coverage": ([0.58, 0.70, 0.84], [0.96, 0.95, 0.94]),
}


def main(argv: list[str] | None = None) -> None:
    """Train both kinds (or read the runs); print table 27, save and draw."""
    args = arguments(__doc__, output="results/figure6.nc").parse_args(argv)
    runs, budget = main_runs(args, ["vit6"])
    run = runs["vit6"]

    if "seen_epoch" not in run.dims:
        rows = [row for name in PUBLISHED for row in compare_stages(name, None, [])]
        rows += rows_of_figure_9(None, [])
        names = ["", "statistics"]
        publish_nothing_seen(run, rows, figures=names, output=args.output, budget=budget)
        return

    # The published stages, or the same shares of a shorter training.
    measured = attention_of(run)
    last_epoch = min(int(measured["epoch"][-1]), 100)
    epochs = [last_epoch * stage / 100 for stage in STAGES]
    stages = measured.sel(epoch=epochs, method="nearest")
    obstacles = obstacles_by_backbone(args, ["vit6"])["vit6"]
    rows = [row for name in PUBLISHED for row in rows_of(name, stages, obstacles)]
    rows += rows_of_figure_9(stages, obstacles)

    images = recipe_for("vit6", args, "cifar100").images().x_test
    maps = attention.plot_maps(stages.isel(seed=0, layer=[0, 2, 5]), images)
    statistics = measured.drop_vars("weight")
    panels = attention.plot_statistics(statistics.isel(layer=[-1]), x="epoch", hue="training")
    figures = {"": maps[0, 0].figure, "statistics": panels[0, 0].figure}
    publish(statistics, figures, rows, output=args.output, budget=budget)


def rows_of_figure_9(measured: xr.Dataset | None, obstacles: Sequence[str]) -> list[Row]:
    """Compare the changes in percent that the caption of figure 9 has, at the last stage.

    They contradict table 27, whose last column changes by other amounts.

    Args:
        measured: Attention at the stages; None if there is none.
        obstacles: What keeps it from being compared.
    """
    rows = []
    for name, published in FIGURE_9.items():
        values: Sequence[float] = []
        if measured is not None:
            means = measured[name].isel(epoch=-1, layer=-1).mean(["sample", "head"])
            plain, asymmetric = (means.sel(training=kind) for kind in KINDS)
            values = (100 * (asymmetric / plain - 1)).values.tolist()

        before, after = (numbers[-1] for numbers in PUBLISHED[name])
        contradiction = f"table 27 has {100 * (after / before - 1):+.1f} %"
        title = f"{name}, change / % (figure 9)"
        note = f"{contradiction}; {READING}"
        paper = printed_as(f"{published:.1f}")
        rows.append(compare(title, paper, values, obstacles=obstacles, note=note))
    return rows


def attention_of(run: xr.Dataset) -> xr.Dataset:
    """Return what `attention.capture` found, over `training`, `seed` and `epoch`."""
    names = [name for name, variable in run.data_vars.items() if "seen_epoch" in variable.dims]
    return run[names].drop_vars("epoch", errors="ignore").rename(seen_epoch="epoch")


def rows_of(name: str, stages: xr.Dataset, obstacles: Sequence[str]) -> list[Row]:
    """Compare a statistic of the last layer, plain and asymmetric, at each stage."""
    means = stages[name].isel(layer=-1).mean(["sample", "head"])
    return compare_stages(name, means, obstacles)


def compare_stages(name: str, means: xr.DataArray | None, obstacles: Sequence[str]) -> list[Row]:
    """Compare a statistic at each stage.

    Args:
        name: Of the statistic.
        means: Ours, over `training`, `epoch` and `seed`; None if nothing was measured.
        obstacles: What keeps it from being compared.
    """
    rows = []
    for kind, numbers in zip(KINDS, PUBLISHED[name], strict=True):
        for stage, number in enumerate(numbers):
            values = [] if means is None else means.sel(training=kind).isel(epoch=stage).values
            quantity = f"{name}, {kind}, stage {stage + 1}"
            paper = printed_as(f"{number:.{DIGITS[name]}f}")
            rows.append(compare(quantity, paper, values, obstacles=obstacles, note=READING))
    return rows


if __name__ == "__main__":
    main()
