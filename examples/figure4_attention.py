"""Where does the class token look, on few patches or on many? (figures 4, 6, 9; table 27)

    python examples/figure4_attention.py [--scale cpu] [--data cifar10.npz]

Attention of the class token of a ViT-6L on test images, plain and with 20 branches at each block,
along training. The paper's epochs 20, 60 and 100 become a fifth, three fifths and all of the
epochs where there are fewer than 100. A number for what its figure 4 shows in pictures as "sharper
focus" is the share of the attention of the last block on the quarter of the patches that has most.
Table 27 says the opposite: a lower peak, a higher entropy.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from torch import Tensor

import attention
from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import Row, compare, compare_with_range, printed_as
from lab.studies.main_runs import (
    KINDS,
    main_runs,
    obstacles_by_backbone,
    publish_nothing_seen,
)
from lab.training.scales import recipe_for

IMAGES = 4  # test images in figure 4
FOCUS = "ViT-6L, change of the focus"
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
    """Train both kinds (or read the runs); print focus and table 27, save and draw."""
    args = arguments(__doc__, output="results/figure4.nc").parse_args(argv)
    runs, budget = main_runs(args, ["vit6"])
    run = runs["vit6"]

    if "seen_epoch" not in run.dims:
        rows = [Row(FOCUS, "sharper", float("nan"))]
        rows += [row for name in PUBLISHED for row in compare_stages(name, None, [])]
        rows += rows_of_figure_9(None, [])
        names = ["", "maps", "statistics"]
        publish_nothing_seen(run, rows, figures=names, output=args.output, budget=budget)
        return

    # The published stages, or the same shares of a shorter training.
    trajectory = attention_of(run)
    last_epoch = min(int(trajectory["epoch"][-1]), 100)
    epochs = [last_epoch * stage / 100 for stage in STAGES]
    stages = trajectory.sel(epoch=epochs, method="nearest")
    focus = measure_focus(trajectory["weight"].isel(epoch=-1, layer=-1))

    obstacles = obstacles_by_backbone(args, ["vit6"])["vit6"]
    rows = [row_of_focus(focus, obstacles)]
    rows += [row for name in PUBLISHED for row in rows_of(name, stages, obstacles)]
    rows += rows_of_figure_9(stages, obstacles)

    images = recipe_for("vit6", args, "cifar100").images().x_test
    statistics = trajectory.drop_vars("weight")
    panels = attention.plot_statistics(statistics.isel(layer=[-1]), x="epoch", hue="training")
    maps = attention.plot_maps(stages.isel(seed=0, layer=[0, 2, 5]), images)
    figures = {
        "": draw(trajectory.isel(epoch=-1), images),
        "maps": maps[0, 0].figure,
        "statistics": panels[0, 0].figure,
    }
    publish(statistics.assign(focus=focus), figures, rows, output=args.output, budget=budget)


def attention_of(run: xr.Dataset) -> xr.Dataset:
    """Return what `attention.capture` saw, over `training`, `seed` and `epoch`."""
    names = [name for name, variable in run.data_vars.items() if "seen_epoch" in variable.dims]
    return run[names].drop_vars("epoch", errors="ignore").rename(seen_epoch="epoch")


def measure_focus(weight: xr.DataArray) -> xr.DataArray:
    """Sum the attention, averaged over heads, on the quarter of the patches that has most."""
    # Averaged over heads first: what counts is where the layer looks, not each head.
    weight = weight.mean("head").drop_vars(["epoch", "layer"], errors="ignore")
    weight = weight.transpose(..., "key")
    quarter = weight.sizes["key"] // 4
    highest = np.sort(weight.values, axis=-1)[..., -quarter:]

    focus = weight.isel(key=0, drop=True).copy(data=highest.sum(-1))
    return focus.assign_attrs(long_name="attention on the quarter of the patches that has most")


def row_of_focus(focus: xr.DataArray, obstacles: Sequence[str]) -> Row:
    """Compare the change of the focus with the paper's word for it."""
    means = focus.mean("sample")
    plain, asymmetric = (means.sel(training=kind) for kind in KINDS)
    return compare_with_range(
        FOCUS,
        "sharper",
        (asymmetric - plain).values,
        (0.0, 1.0),
        obstacles=obstacles,
        note=f"{float(plain.mean()):.3f} to {float(asymmetric.mean()):.3f}; even attention: 0.25",
    )


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


def rows_of_figure_9(stages: xr.Dataset | None, obstacles: Sequence[str]) -> list[Row]:
    """Compare the changes in percent that the caption of figure 9 has, at the last stage.

    They contradict table 27, whose last column changes by other amounts.

    Args:
        stages: Attention at the stages; None if there is none.
        obstacles: What keeps it from being compared.
    """
    rows = []
    for name, published in FIGURE_9.items():
        values: Sequence[float] = []
        if stages is not None:
            means = stages[name].isel(epoch=-1, layer=-1).mean(["sample", "head"])
            plain, asymmetric = (means.sel(training=kind) for kind in KINDS)
            values = (100 * (asymmetric / plain - 1)).values.tolist()

        plain_number, asymmetric_number = (numbers[-1] for numbers in PUBLISHED[name])
        contradiction = f"table 27 has {100 * (asymmetric_number / plain_number - 1):+.1f} %"
        title = f"{name}, change / % (figure 9)"
        note = f"{contradiction}; {READING}"
        paper = printed_as(f"{published:.1f}")
        rows.append(compare(title, paper, values, obstacles=obstacles, note=note))
    return rows


def draw(last_stage: xr.Dataset, images: Tensor) -> plt.Figure:
    """Draw a row for each image: itself, then the attention of both kinds, of the first seed.

    Args:
        last_stage: Attention after the last epoch; that of the last layer is drawn.
        images: Of the samples, `(sample, channel, height, width)`.
    """
    size = (6.4, 1.9 * IMAGES + 0.4)
    figure, axes = plt.subplots(IMAGES, 3, figsize=size, layout="compressed")
    weight = last_stage["weight"].isel(seed=0, layer=-1).mean("head")
    side = int(last_stage["grid_height"].isel(layer=-1))

    # One scale for all maps; a few patches that outshine all others are cut off.
    brightest = float(weight.isel(sample=slice(IMAGES)).quantile(0.98))
    for sample, (image_ax, *map_axes) in enumerate(axes):
        picture = images[sample].permute(1, 2, 0).numpy()
        darkest = picture.min()
        image_ax.imshow((picture - darkest) / (picture.max() - darkest), cmap="gray")

        for ax, kind in zip(map_axes, KINDS, strict=True):
            patches = weight.sel(training=kind).isel(sample=sample).values.reshape(side, -1)
            mappable = ax.imshow(patches, cmap="inferno", vmin=0, vmax=brightest)

    for ax, title in zip(axes[0], ("image", *KINDS), strict=True):
        ax.set_title(title)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    label = "attention weight, mean over heads"
    figure.colorbar(mappable, ax=axes, label=label, shrink=0.5, extend="max")
    return figure


if __name__ == "__main__":
    main()
