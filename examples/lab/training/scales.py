"""How much is spent: the paper's recipes, and what is cut from them at the smaller scales.

A recipe is `PAPER[backbone] | CUTS[scale][backbone]`, the right side winning, then the data, then
what a script changes. `--show-recipe` prints what comes out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.data.images import load
from lab.training.recipe import Recipe
from lab.training.strengths import TABLE_15, rescale_strength

Settings = dict[str, Any]

# Of data that are asked for by name; "digits" is what scale smoke takes.
_CLASSES = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100, "imagenet": 1000}

LABELS = {
    "mlp": "MLP",
    "cnn": "CNN",
    "vit6": "ViT-6L",
    "coatnet": "CoAtNet",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "vit_small": "ViT-Small",
    "vit_base": "ViT-B/16",
}
SMALL = ("mlp", "cnn", "vit6")
ALPHA_20 = {backbone: alpha for backbone, (alpha, _) in TABLE_15[20].items()}
SEEDS = {"smoke": 2, "cpu": 3, "paper": 10}
FIRST_SEED = 42

# Tables 20 and 21. The norm at which gradients are clipped is not given: 1.
_IMAGENET: Settings = {"image": 224, "clip": 1.0, "zero_head": True, "augment": True}
_RESNET: Settings = _IMAGENET | {
    "optimizer": "sgd",
    "lr": 0.2,
    "weight_decay": 1e-4,
    "batch": 512,
    "epochs": 90,
    "schedule": "step",
    "milestones": (30, 60, 80),
}
_VIT: Settings = _IMAGENET | {
    "lr": 1e-3,
    "batch": 256,
    "epochs": 150,
    "schedule": "cosine",
    "warm_up": 7.5,
    "min_lr": 1e-5,
}

# Table 15 at 20 x for the first three, table 24 for the CoAtNet, table 20 for the others.
PAPER: dict[str, Settings] = {
    "mlp": {"lr": 1e-4, "weight_decay": 1e-3},
    "cnn": {"lr": 3e-4, "weight_decay": 1e-3},
    "vit6": {"lr": 1e-3, "weight_decay": 1e-2},
    "coatnet": {
        "lr": 1e-3,
        "weight_decay": 0.05,
        "schedule": "cosine",
        "warm_up": 5,
        "min_lr": 1e-6,
        "label_smoothing": 0.1,
        "augment": True,
    },
    "resnet18": _RESNET,
    "resnet50": _RESNET,
    "vit_small": _VIT | {"weight_decay": 0.1},
    "vit_base": _VIT | {"weight_decay": 0.3},
}

# One rate for the few updates there are; an MLP takes a higher one.
_SMOKE_SMALL: Settings = {
    "per_class": 8,
    "test_per_class": 5,
    "epochs": 3,
    "batch": 20,
    "lr": 1e-3,
    "trace_every": 1,
}
_CPU_SMALL: Settings = {
    "per_class": 100,
    "test_per_class": 100,
    "epochs": 8,
    "batch": 32,
    "trace_every": 5,
}

# The large networks see small images for a few epochs, too few for a warm-up or for milestones;
# their gradients are not traced.
_CUT_LARGE: Settings = {
    "image": 32,
    "augment": False,
    "warm_up": 0.0,
    "milestones": (),
    "trace_every": 0,
}
_SMOKE_LARGE = _SMOKE_SMALL | _CUT_LARGE | {"per_class": 4, "epochs": 1}
_CPU_LARGE = _CPU_SMALL | _CUT_LARGE | {"epochs": 3}

CUTS: dict[str, dict[str, Settings]] = {
    "smoke": {
        "mlp": _SMOKE_SMALL | {"lr": 3e-3},
        "cnn": _SMOKE_SMALL,
        "vit6": _SMOKE_SMALL,
        "coatnet": _SMOKE_LARGE | {"image": 16},
        "resnet18": _SMOKE_LARGE,
        "resnet50": _SMOKE_LARGE,
        "vit_small": _SMOKE_LARGE,
        "vit_base": _SMOKE_LARGE,
    },
    "cpu": {
        # An MLP runs 70 times as fast as the others, and can have more.
        "mlp": _CPU_SMALL | {"per_class": 1000, "epochs": 10, "batch": 128},
        "cnn": _CPU_SMALL,
        "vit6": _CPU_SMALL,
        "coatnet": _CPU_LARGE,
        "resnet18": _CPU_LARGE,
        "resnet50": _CPU_LARGE,
        "vit_small": _CPU_LARGE,
        "vit_base": _CPU_LARGE,
    },
    "paper": {backbone: {"trace_every": 50} for backbone in PAPER},
}


def recipe_for(backbone: str, args: argparse.Namespace, paper_data: str, **changes: Any) -> Recipe:
    """Make the paper's recipe for a backbone, cut to `args.scale`, on `args.data`.

    Gradients (and a ViT-6L's attention) are measured along, so that scripts share runs.

    Args:
        backbone: As for `Recipe`.
        args: From `lab.results.options.arguments`.
        paper_data: What the paper used: the default except at scale smoke.
        changes: Fields of the recipe that are the script's own; these win.
    """
    settings = PAPER[backbone] | CUTS[args.scale][backbone]

    default_data = "digits" if args.scale == "smoke" else paper_data
    settings["data"] = args.data or default_data

    if backbone == "vit6":
        epochs = settings.get("epochs", Recipe.epochs)
        settings["attention_epochs"] = _ten_epochs(epochs)

    return Recipe(backbone=backbone, **settings | changes)


def strength_for(recipe: Recipe, alpha: float, found_on: str = "cifar100") -> float:
    """Return a published strength, rescaled if the data have other classes than its search had.

    Args:
        recipe: With the data of the run.
        alpha: What the paper's search found.
        found_on: The data of that search, a name in `_CLASSES`.
    """
    return rescale_strength(
        alpha, classes=count_classes(recipe.data), found_with=_CLASSES[found_on]
    )


def count_classes(data: str) -> int:
    """Return how many classes data have; only files without a known name are opened."""
    return _CLASSES[data] if data in _CLASSES else load(data).classes


def remark_on_strength(recipe: Recipe, alpha: float, found_on: str = "cifar100") -> str:
    """Say that a strength was rescaled; nothing if it was not."""
    rescaled = strength_for(recipe, alpha, found_on)
    if rescaled == alpha:
        return ""
    classes = f"{count_classes(recipe.data)} classes in place of {_CLASSES[found_on]}"
    return f"alpha {alpha:g} rescaled to {rescaled:g}: {classes}"


def _ten_epochs(total: int) -> tuple[int, ...]:
    """Return about ten epochs at equal distances; all, if there are fewer."""
    step = max(total // 10, 1)
    return tuple(range(step, total + 1, step))


def seeds_for(args: argparse.Namespace, published: int = 10) -> list[int]:
    """Return the seeds of a script, of which the paper has so many; all start at 42."""
    count = args.seeds or min(SEEDS[args.scale], published)
    return list(range(FIRST_SEED, FIRST_SEED + count))


def budget_of(recipes: Sequence[Recipe], n_seeds: int) -> str:
    """Say what was spent: images and epochs of each backbone, if they differ."""
    labels_by_budget: dict[str, list[str]] = {}
    for backbone in dict.fromkeys(recipe.backbone for recipe in recipes):
        its_recipes = [recipe for recipe in recipes if recipe.backbone == backbone]
        words = _images_and_epochs(its_recipes)
        labels_by_budget.setdefault(words, []).append(LABELS[backbone])

    budgets = list(labels_by_budget)
    if len(budgets) > 1:
        budgets = [f"{'/'.join(labels)} {words}" for words, labels in labels_by_budget.items()]

    data = "/".join(dict.fromkeys(Path(recipe.data).stem for recipe in recipes))
    return f"{data}, {', '.join(budgets)}, {plural(n_seeds, 'seed')}"


def plural(number: int, noun: str) -> str:
    """Write a number of things.

    Examples:
        >>> plural(1, "seed"), plural(3, "epoch")
        ('1 seed', '3 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _images_and_epochs(recipes: Sequence[Recipe]) -> str:
    counts = sorted({recipe.per_class or 0 for recipe in recipes})
    least, most = (str(count or "all") for count in (counts[0], counts[-1]))

    images = least if least == most else f"{least}-{most}"
    images = "all images" if images == "all" else f"{images} images/class"
    return f"{images} x {plural(recipes[0].epochs, 'epoch')}"
