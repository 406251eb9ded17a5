"""What decides how the planes of figure 5 and table 4 are measured: options, recipes, budgets."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.studies.surfaces import CLASSES, SCALINGS, SPAN, PlaneBudget
from lab.training.recipe import Recipe
from lab.training.scales import LABELS, plural, recipe_for

# Points each way and images: of the MLP, and of the others, which cost far more.
BUDGETS = {
    "smoke": (PlaneBudget(5, 40), PlaneBudget(3, 20)),
    "cpu": (PlaneBudget(51, 500), PlaneBudget(5, 100)),
    "paper": (PlaneBudget(51, 500), PlaneBudget(51, 500)),
}


def add_plane_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides how planes are measured."""
    parser.add_argument(
        "--scaling",
        nargs="+",
        choices=SCALINGS,
        default=["tensor"],
        help="every tensor of a direction equally long, or all as one vector",
    )
    for_two = "of the MLP, and of the others; or one number for all"
    parser.add_argument("--size", type=int, nargs="+", help=f"points along each axis, {for_two}")
    parser.add_argument("--tolerance", type=float, help="interpolate; every point by default")
    parser.add_argument(
        "--span", type=float, default=SPAN, help="how far the axes reach: the paper does not say"
    )
    parser.add_argument("--samples", type=int, nargs="+", help=f"training images, {for_two}")


def plane_recipe(name: str, args: argparse.Namespace) -> Recipe:
    """Make the recipe of a backbone whose planes are measured: on all images, without training."""
    return recipe_for(name, args, f"cifar{CLASSES[name]}", per_class=None)


def plane_budget(name: str, args: argparse.Namespace) -> PlaneBudget:
    """Return what a plane costs: what was asked for, or what the scale has."""
    place = 0 if name == "mlp" else -1
    budget = BUDGETS[args.scale][place]
    size = args.size[place] if args.size else budget.size
    samples = args.samples[place] if args.samples else budget.samples
    return PlaneBudget(size, samples, args.tolerance, args.span)


def words_of(
    recipes: Mapping[str, Recipe], budgets: Mapping[str, PlaneBudget], seeds: Sequence[int]
) -> str:
    """Say what was spent on planes."""
    data = "/".join(dict.fromkeys(Path(recipe.data).stem for recipe in recipes.values()))
    labels_by_budget: dict[str, list[str]] = {}
    for name, budget in budgets.items():
        labels_by_budget.setdefault(str(budget), []).append(LABELS[name])

    spent = [f"{'/'.join(labels)} {words}" for words, labels in labels_by_budget.items()]
    return f"{data}; {'; '.join(spent)}; {plural(len(seeds), 'seed')}"
