"""Do branches smooth the loss surface, or do they only dilute directions? (figure 5, tables 7, 8)

    python examples/figure5_landscape.py [--scale cpu] [--data cifar10.npz] [--backbone mlp cnn]

A 51 x 51 plane around the initialisation, plain and with 1, 20 and 300 branches at each layer,
along Gaussian directions normalised as one vector over backbone and branches, as the paper drew
them; then over the backbone alone, where branches cannot matter. Nothing is trained, so images of
the paper's size and classes (MLP 10, CNN and ViT-6L 100) give a verdict at any scale (within 10
points). Also writes a page to turn the first backbone's plain surface.
"""

import matplotlib.pyplot as plt
import xarray as xr

import landscape
from lab.results.publish import Row, arguments, compare, publish, write_atomically
from lab.studies.surfaces import measure_surfaces
from lab.training.scales import LABELS, base

BRANCHES = (1, 20, 300)
# Tables 7 and 8: change of Std(Loss), Range(Loss) and Mean(Grad) in percent.
PUBLISHED = {
    "mlp": [(-52.3, -57.6, -49.8), (-64.4, -64.9, -65.0), (-90.2, -90.3, -90.4)],
    "cnn": [(-16.3, -17.3, -15.9), (-66.7, -68.0, -66.9), (-90.2, -90.3, -90.2)],
    "vit6": [(-3.7, -3.7, -3.6), (-37.7, -38.0, -37.1), (-80.1, -79.3, -77.6)],
}
CLASSES = {"mlp": 10, "cnn": 100, "vit6": 100}
STATISTICS = {"std": "Std(Loss)", "range": "Range(Loss)", "mean_grad_per_step": "Mean(Grad)"}
# Points each way and images: of the MLP, and of the others, which cost far more.
BUDGETS = {"smoke": [(7, 40), (5, 40)], "cpu": [(25, 500), (9, 100)], "paper": [(51, 500)] * 2}


def main(argv: list[str] | None = None) -> None:
    """Measure every backbone and number of branches, print the table, save and draw."""
    parser = arguments(__doc__, output="results/figure5.nc")
    parser.add_argument("--backbone", nargs="+", choices=list(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--size", type=int, help="points along each axis")
    parser.add_argument("--tolerance", type=float, help="interpolate; every point by default")
    parser.add_argument("--samples", type=int, help="training images")
    args = parser.parse_args(argv)
    names = list(dict.fromkeys(args.backbone))
    figure = plt.figure(figsize=(16.8, 4.4 * len(names)), layout="constrained")
    panels = figure.subfigures(len(names), squeeze=False)[:, 0]
    found, rows, pages, sets, spent = [], [], [], {}, {}
    for name, panel in zip(names, panels, strict=True):
        size, samples = BUDGETS[args.scale][name != "mlp"]
        size, samples = args.size or size, args.samples or samples
        recipe = base(name, args, f"cifar{CLASSES[name]}", per_class=None)
        images = recipe.images()
        settings = {"size": size, "samples": samples, "tolerance": args.tolerance}
        part, surfaces = measure_surfaces(recipe, images, BRANCHES, **settings)
        like_the_paper = (images.image, images.classes) == (32, CLASSES[name])
        for n, published in zip(BRANCHES, PUBLISHED[name], strict=True):
            label = f"{LABELS[name]}, {n} x"
            rows += rows_of(label, published, part.sel(n=n), like_the_paper=like_the_paper)
        titled = {f"{LABELS[name]}, {title}": each for title, each in surfaces.items()}
        landscape.plot_surfaces(titled, figure=panel)
        found.append(part)
        pages.append(landscape.html_surface(surfaces["plain"]))
        sets[recipe.data.rsplit("/", 1)[-1]] = None
        spent.setdefault(f"{samples} images, {size} x {size} points", []).append(LABELS[name])
    labels = xr.Variable("architecture", [LABELS[n] for n in names], {"long_name": "backbone"})
    result = xr.concat(found, dim=labels, combine_attrs="drop_conflicts")
    words = [f"{'/'.join(labels)} {text}" for text, labels in spent.items()]
    budget = f"{'/'.join(sets)}: {'; '.join(words)}"
    publish(result, figure, rows, output=args.output, budget=budget)
    write_atomically({args.output.with_suffix(".html"): lambda path: path.write_text(pages[0])})


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
