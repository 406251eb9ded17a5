"""Where does the class token look after training, with branches and without? (figure 4)

    python examples/figure4_attention.py [--scale cpu] [--data cifar10.npz]

The attention of the last block on the first test images, and a number for what the paper shows in
pictures as "sharper focus": the share of the attention on the quarter of the patches that has
most. Its own table 27 says the opposite of its figure 4: a lower peak, a higher entropy.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from torch import Tensor

from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import Row, compare_with_range
from lab.studies.main_runs import (
    KINDS,
    main_runs,
    obstacles_by_backbone,
    publish_nothing_seen,
)
from lab.training.scales import recipe_for

IMAGES = 4  # test images in the figure
QUANTITY = "ViT-6L, change of the focus"


def main(argv: list[str] | None = None) -> None:
    """Train both kinds (or read the runs); print the focus, save and draw."""
    args = arguments(__doc__, output="results/figure4.nc").parse_args(argv)
    runs, budget = main_runs(args, ["vit6"])
    run = runs["vit6"]

    if "seen_epoch" not in run.dims:
        rows = [Row(QUANTITY, "sharper", float("nan"))]
        publish_nothing_seen(run, rows, figures=[""], output=args.output, budget=budget)
        return

    last_layer = run.isel(seen_epoch=-1, layer=[-1])
    focus = measure_focus(last_layer["weight"])
    result = xr.Dataset({"focus": focus, "weight": last_layer["weight"]})

    means = focus.mean("sample")
    plain, asymmetric = (means.sel(training=kind) for kind in KINDS)
    row = compare_with_range(
        QUANTITY,
        "sharper",
        (asymmetric - plain).values,
        (0.0, 1.0),
        obstacles=obstacles_by_backbone(args, ["vit6"])["vit6"],
        note=f"{float(plain.mean()):.3f} to {float(asymmetric.mean()):.3f}; even attention: 0.25",
    )
    rows = [row]

    images = recipe_for("vit6", args, "cifar100").images().x_test
    publish(result, draw(result, images), rows, output=args.output, budget=budget)


def measure_focus(weight: xr.DataArray) -> xr.DataArray:
    """Sum the attention, averaged over heads, on the quarter of the patches that has most."""
    # Averaged over heads first: what counts is where the layer looks, not each head.
    weight = weight.mean("head").isel(layer=0, drop=True).transpose(..., "key")
    quarter = weight.sizes["key"] // 4
    highest = np.sort(weight.values, axis=-1)[..., -quarter:]

    focus = weight.isel(key=0, drop=True).copy(data=highest.sum(-1))
    return focus.assign_attrs(long_name="attention on the quarter of the patches that has most")


def draw(result: xr.Dataset, images: Tensor) -> plt.Figure:
    """Draw a row for each image: itself, then the attention of both kinds, of the first seed."""
    size = (6.4, 1.9 * IMAGES + 0.4)
    figure, axes = plt.subplots(IMAGES, 3, figsize=size, layout="compressed")
    weight = result["weight"].isel(seed=0, layer=0).mean("head")
    side = int(result["grid_height"].isel(layer=0))

    # One scale for all maps; a few patches that outshine all others are cut off.
    brightest = float(weight.isel(sample=slice(IMAGES)).quantile(0.98))
    for sample, (image_ax, *map_axes) in enumerate(axes):
        picture = images[sample].permute(1, 2, 0).numpy()
        low, high = picture.min(), picture.max()
        image_ax.imshow((picture - low) / (high - low), cmap="gray")

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
