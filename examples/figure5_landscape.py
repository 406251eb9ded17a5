"""Do branches smooth the loss surface, or do they only dilute directions? (figure 5, tables 7, 8)

    python examples/figure5_landscape.py [--scale cpu] [--data cifar10.npz] [--backbone mlp]

A 51 x 51 plane around the initialisation, plain and with 1, 20 and 300 branches at each layer,
along Gaussian directions normalised as one vector over backbone and branches, as the paper drew
them; then over the backbone alone, where branches cannot matter. Nothing is trained, so images of
the paper's size give a verdict at any scale (within 10 points). Also writes a page to turn it.
"""

from dataclasses import replace

import torch
import xarray as xr

import landscape
from lab.report import Row, arguments, compare, publish, write_atomically
from lab.scales import LABELS, base

BRANCHES = (1, 20, 300)
# Tables 7 and 8: change of Std(Loss), Range(Loss) and Mean(Grad) in percent.
PUBLISHED = {
    "mlp": [(-52.3, -57.6, -49.8), (-64.4, -64.9, -65.0), (-90.2, -90.3, -90.4)],
    "cnn": [(-16.3, -17.3, -15.9), (-66.7, -68.0, -66.9), (-90.2, -90.3, -90.2)],
    "vit6": [(-3.7, -3.7, -3.6), (-37.7, -38.0, -37.1), (-80.1, -79.3, -77.6)],
}
STATISTICS = {"std": "Std(Loss)", "range": "Range(Loss)", "mean_grad_per_step": "Mean(Grad)"}
SIZES = {"smoke": (7, 40), "cpu": (25, 500), "paper": (51, 500)}  # points each way, images


def main(argv: list[str] | None = None) -> None:
    """Measure every number of branches, print the table, save and draw."""
    parser = arguments(__doc__, output="results/figure5.nc")
    parser.add_argument("--backbone", choices=list(PUBLISHED), default="mlp")
    parser.add_argument("--size", type=int, help="points along each axis")
    parser.add_argument("--tolerance", type=float, help="interpolate; every point by default")
    parser.add_argument("--samples", type=int, help="training images")
    args = parser.parse_args(argv)
    size, samples = args.size or SIZES[args.scale][0], args.samples or SIZES[args.scale][1]
    paper_data = "cifar10" if args.backbone == "mlp" else "cifar100"
    recipe = base(args.backbone, args, paper_data, per_class=None)
    images = recipe.images()
    data = images.x_train, images.y_train
    torch.manual_seed(recipe.seed)
    model = recipe.model(images)
    settings = {"over": "**", "samples": samples, "seed": recipe.seed}
    if args.tolerance is not None:
        settings |= {"method": "adaptive", "tolerance": args.tolerance}
    drawing = settings | {"normalisation": "unit", "size": min(size, 25)}
    surfaces = {"plain": landscape.grid(model, data, **drawing)}
    found, rows = [], []
    for n, published in zip(BRANCHES, PUBLISHED[args.backbone], strict=True):
        with replace(recipe, n=n).probe(model, data[0][:2], 1) as probe:
            found.append(landscape.dilution(model, data, probe, size=size, **settings))
            surfaces[f"{n} x"] = landscape.grid(model, data, extra=probe, **drawing)
        label = f"{LABELS[args.backbone]}, {n} x"
        rows += rows_of(label, published, found[-1], like_the_paper=images.image == 32)
    number = xr.Variable("n", list(BRANCHES), {"long_name": "branches at each layer"})
    result = xr.concat(found, dim=number, combine_attrs="drop_conflicts")
    figure = landscape.plot_surfaces(surfaces)[0].figure
    budget = f"{recipe.data.rsplit('/', 1)[-1]}, {samples} images, {size} x {size} points"
    publish(result, figure, rows, output=args.output, budget=budget)
    page = landscape.html_surface(surfaces["plain"])
    write_atomically({args.output.with_suffix(".html"): lambda path: path.write_text(page)})


def rows_of(
    label: str, published: tuple[float, ...], found: xr.Dataset, *, like_the_paper: bool
) -> list[Row]:
    """The change of each statistic in percent, and what dilution alone explains."""
    note, rows = f"dilution alone: {100 * (found['factor'].item() - 1):.1f} %", []
    for (name, title), number in zip(STATISTICS.items(), published, strict=True):
        here = 100 * float(found["change"].sel(statistic=name))
        free = {"budget_free": like_the_paper, "tolerance": 10.0, "note": note}
        rows.append(compare(f"{label}, change of {title} / %", number, here, scale="smoke", **free))
    return rows


if __name__ == "__main__":
    main()
