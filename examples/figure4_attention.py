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

from lab.results.publish import Row, arguments, publish
from lab.studies.main_runs import KINDS, main_runs, publish_nothing_seen
from lab.training.scales import base

IMAGES = 4
QUANTITY = "ViT-6L, change of the focus"


def main(argv: list[str] | None = None) -> None:
    """Train both kinds (or read the runs); print the focus, save and draw."""
    args = arguments(__doc__, output="results/figure4.nc").parse_args(argv)
    runs, budget = main_runs(args, ["vit6"])
    if "seen_epoch" not in runs["vit6"].dims:
        rows = [Row(QUANTITY, "sharper", float("nan"))]
        kept = {"figures": [""], "output": args.output, "budget": budget}
        return publish_nothing_seen(runs["vit6"], rows, **kept)
    final = runs["vit6"].isel(seen_epoch=-1, layer=[-1])
    weight = final["weight"].mean("head").isel(layer=0, drop=True).transpose(..., "key")
    quarter = weight.sizes["key"] // 4
    most = np.sort(weight.values, axis=-1)[..., -quarter:].sum(-1)
    focus = (
        weight.isel(key=0, drop=True)
        .copy(data=most)
        .assign_attrs(long_name="attention on the quarter of the patches that has most")
    )
    result = xr.Dataset({"focus": focus, "weight": final["weight"]})
    means = focus.mean(["sample", "seed"])
    plain, asymmetric = (float(means.sel(training=kind)) for kind in KINDS)
    verdict = "not comparable"
    change = asymmetric - plain
    if args.scale == "paper" and np.isfinite(change):
        verdict = "agrees" if asymmetric > plain else "disagrees"
    note = f"{plain:.3f} to {asymmetric:.3f}; even attention has 0.25"
    rows = [Row(QUANTITY, "sharper", change, verdict, note)]
    images = base("vit6", args, "cifar100").images().x_test
    publish(result, draw(result, images), rows, output=args.output, budget=budget)


def draw(result: xr.Dataset, images: Tensor) -> plt.Figure:
    """A row for each image: itself, then the attention of both kinds, of the first seed."""
    size = (6.4, 1.9 * IMAGES + 0.4)
    figure, axes = plt.subplots(IMAGES, 3, figsize=size, layout="compressed")
    weight = result["weight"].isel(seed=0, layer=0).mean("head")
    side = int(result["grid_height"].isel(layer=0))
    for sample, line in enumerate(axes):
        picture = images[sample].permute(1, 2, 0).numpy()
        low, high = picture.min(), picture.max()
        line[0].imshow((picture - low) / (high - low), cmap="gray")
        for ax, kind in zip(line[1:], KINDS, strict=True):
            values = weight.sel(training=kind).isel(sample=sample).values.reshape(side, -1)
            bright = float(weight.isel(sample=slice(IMAGES)).quantile(0.98))
            drawn = ax.imshow(values, cmap="inferno", vmin=0, vmax=bright)
    for ax, title in zip(axes[0], ("image", *KINDS), strict=True):
        ax.set_title(title)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    settings = {"label": "attention weight, mean over heads", "shrink": 0.5, "extend": "max"}
    figure.colorbar(drawn, ax=axes, **settings)
    return figure


if __name__ == "__main__":
    main()
