"""Do branches smooth the loss surface, or do they only dilute directions? (figure 5, tables 7, 8)

    python examples/figure5_landscape.py [--scale cpu] [--data cifar10.npz] [--backbone mlp cnn]

A 51 x 51 plane around the initialisation, plain and with 1, 20 and 300 branches at each layer,
along Gaussian directions normalised as one vector over backbone and branches, as the paper drew
them; then over the backbone alone, where branches cannot matter. Nothing is trained, so images of
the paper's size and classes (MLP 10, CNN and ViT-6L 100) can be compared at any scale. Also
writes a page to turn the first backbone's plain surface.
"""

import argparse
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import xarray as xr

import landscape
from lab.results.files import write_atomically
from lab.results.options import arguments, exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Row, compare
from lab.studies.surfaces import measure_surfaces
from lab.training.scales import LABELS, recipe_for

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
    args = parse_args(argv)
    recipes = {
        name: recipe_for(name, args, f"cifar{CLASSES[name]}", per_class=None)
        for name in dict.fromkeys(args.backbone)
    }
    if args.show_recipe:
        exit_showing([asdict(replace(r, n=n)) for r in recipes.values() for n in (0, *BRANCHES)])

    figure = plt.figure(figsize=(16.8, 4.4 * len(recipes)), layout="constrained")
    panels = figure.subfigures(len(recipes), squeeze=False)[:, 0]
    dilutions, rows, pages = [], [], []
    labels_by_budget: dict[str, list[str]] = {}

    for panel, (name, recipe) in zip(panels, recipes.items(), strict=True):
        images = recipe.images()
        size, samples = budget_for(name, args)
        settings = {"size": size, "samples": samples, "tolerance": args.tolerance}
        dilution, surfaces = measure_surfaces(recipe, images, BRANCHES, **settings)
        dilutions.append(dilution)
        words = f"{samples} images, {size} x {size} points"
        labels_by_budget.setdefault(words, []).append(LABELS[name])

        # Larger images and wider heads have more parameters, and dilute differently.
        like_the_paper = (images.image, images.classes) == (32, CLASSES[name])
        for n, published in zip(BRANCHES, PUBLISHED[name], strict=True):
            label = f"{LABELS[name]}, {n} x"
            part = dilution.sel(n=n)
            rows += rows_of(label, published, part, like_the_paper=like_the_paper)

        titled_surfaces = {
            f"{LABELS[name]}, {title}": surface for title, surface in surfaces.items()
        }
        landscape.plot_surfaces(titled_surfaces, figure=panel)
        pages.append(landscape.html_surface(surfaces["plain"]))

    labels = [LABELS[name] for name in recipes]
    architecture = xr.Variable("architecture", labels, {"long_name": "backbone"})
    result = xr.concat(dilutions, dim=architecture, combine_attrs="drop_conflicts")

    sets = dict.fromkeys(recipe.data.rsplit("/", 1)[-1] for recipe in recipes.values())
    budgets = [f"{'/'.join(names)} {words}" for words, names in labels_by_budget.items()]
    budget = f"{'/'.join(sets)}: {'; '.join(budgets)}"
    publish(result, figure, rows, output=args.output, budget=budget)
    write_atomically({args.output.with_suffix(".html"): lambda path: path.write_text(pages[0])})


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__, output="results/figure5.nc")
    parser.add_argument("--backbone", nargs="+", choices=list(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--size", type=int, help="points along each axis")
    parser.add_argument("--tolerance", type=float, help="interpolate; every point by default")
    parser.add_argument("--samples", type=int, help="training images")
    return parser.parse_args(argv)


def budget_for(name: str, args: argparse.Namespace) -> tuple[int, int]:
    """Return points along each axis, and images: those asked for, or those of the scale."""
    mlp_budget, other_budget = BUDGETS[args.scale]
    size, samples = mlp_budget if name == "mlp" else other_budget
    return args.size or size, args.samples or samples


def rows_of(
    label: str, published: tuple[float, ...], result: xr.Dataset, *, like_the_paper: bool
) -> list[Row]:
    """Compare the change of each statistic in percent, and say what dilution alone explains."""
    note = f"dilution alone: {100 * (result['factor'].item() - 1):.1f} %"
    reasons = [] if like_the_paper else ["other images or classes than the paper's"]

    rows = []
    for (name, title), number in zip(STATISTICS.items(), published, strict=True):
        quantity = f"{label}, change of {title} / %"
        values = 100 * result["change"].sel(statistic=name).values.reshape(-1)
        rows.append(compare(quantity, number, values, obstacles=reasons, note=note))
    return rows


if __name__ == "__main__":
    main()
