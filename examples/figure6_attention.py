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
from lab.results.verdicts import Row, compare
from lab.studies.main_runs import KINDS, main_runs, publish_nothing_seen
from lab.training.scales import recipe_for

STAGES = (20, 60, 100)  # epochs, or percent of fewer
UNDEFINED = [(float("nan"), float("nan"))] * len(STAGES)  # plain, asymmetric
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
        rows = [row for name in PUBLISHED for row in compare_stages(name, UNDEFINED, args.scale)]
        names = ["", "statistics"]
        publish_nothing_seen(run, rows, figures=names, output=args.output, budget=budget)
        return

    # The published stages, or the same shares of a shorter training.
    measured = attention_of(run)
    last_epoch = min(int(measured["epoch"][-1]), 100)
    epochs = [last_epoch * stage / 100 for stage in STAGES]
    stages = measured.sel(epoch=epochs, method="nearest")
    rows = [row for name in PUBLISHED for row in rows_of(name, stages, args.scale)]

    images = recipe_for("vit6", args, "cifar100").images().x_test
    maps = attention.plot_maps(stages.isel(seed=0, layer=[0, 2, 5]), images)
    statistics = measured.drop_vars("weight")
    panels = attention.plot_statistics(statistics.isel(layer=[-1]), x="epoch", hue="training")
    figures = {"": maps[0, 0].figure, "statistics": panels[0, 0].figure}
    publish(statistics, figures, rows, output=args.output, budget=budget)


def attention_of(run: xr.Dataset) -> xr.Dataset:
    """Return what `attention.capture` found, over `training`, `seed` and `epoch`."""
    names = [name for name, variable in run.data_vars.items() if "seen_epoch" in variable.dims]
    return run[names].drop_vars("epoch", errors="ignore").rename(seen_epoch="epoch")


def rows_of(name: str, stages: xr.Dataset, scale: str) -> list[Row]:
    """Compare what training with branches changes in the last layer."""
    means = stages[name].isel(layer=-1).mean(["sample", "head", "seed"])
    plain, asymmetric = (means.sel(training=kind).values.tolist() for kind in KINDS)
    return compare_stages(name, list(zip(plain, asymmetric, strict=True)), scale)


def compare_stages(name: str, here: Sequence[tuple[float, float]], scale: str) -> list[Row]:
    """Compare the change of a statistic, plain to asymmetric, at each stage."""
    rows = []
    published_pairs = zip(*PUBLISHED[name], strict=True)
    for published, pair in zip(published_pairs, here, strict=True):
        words = "{:.3g} to {:.3g}, published {} to {}".format(*pair, *published)
        row = compare(
            f"change of {name}, stage {len(rows) + 1}",
            round(published[1] - published[0], 4),
            pair[1] - pair[0],
            scale=scale,
            note=words,
        )
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
