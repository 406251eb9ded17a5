"""How much is spent: the paper's recipes, and what is cut from them at the smaller scales."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.training.recipe import Recipe
from lab.training.strengths import TABLE_15

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

_IMAGENET = {"image": 224, "clip": 1.0, "zero_head": True, "augment": True}
_STEPS = {"optimizer": "sgd", "lr": 0.2, "weight_decay": 1e-4, "batch": 512, "epochs": 90}
_STEPS |= {"schedule": "step", "milestones": (30, 60, 80)}
_COSINE = {"lr": 1e-3, "batch": 256, "epochs": 150, "schedule": "cosine"}
_COSINE |= {"warm_up": 7.5, "min_lr": 1e-5}
# Table 15 at 20 x, table 24, table 20. The norm at which gradients are clipped is not given: 1.
PAPER: dict[str, dict[str, Any]] = {
    "mlp": {"lr": 1e-4, "weight_decay": 1e-3},
    "cnn": {"lr": 3e-4, "weight_decay": 1e-3},
    "vit6": {"lr": 1e-3, "weight_decay": 1e-2},
    "coatnet": {"lr": 1e-3, "weight_decay": 0.05, "schedule": "cosine", "warm_up": 5}
    | {"min_lr": 1e-6, "label_smoothing": 0.1, "augment": True},
    "resnet18": _IMAGENET | _STEPS,
    "resnet50": _IMAGENET | _STEPS,
    "vit_small": _IMAGENET | _COSINE | {"weight_decay": 0.1},
    "vit_base": _IMAGENET | _COSINE | {"weight_decay": 0.3},
}
_CUT: dict[str, dict[str, Any]] = {
    "smoke": {"per_class": 8, "test_per_class": 5, "epochs": 3, "batch": 20, "trace_every": 1}
    | {"lr": 3e-3},
    "cpu": {"per_class": 100, "test_per_class": 100, "epochs": 8, "batch": 32, "trace_every": 5},
    "paper": {"trace_every": 50},
}
_CHEAP = {"per_class": 1000, "epochs": 10, "batch": 128}  # the MLP, which runs 70 times as fast


def base(backbone: str, args: argparse.Namespace, paper_data: str, **changes: Any) -> Recipe:
    """The paper's recipe for a backbone, cut to `args.scale`, on `args.data`.

    Gradients (and a ViT-6L's attention) are measured along, so that scripts share runs.

    Args:
        backbone: As for `Recipe`.
        args: From `lab.results.publish.arguments`.
        paper_data: What the paper used: the default except at scale smoke.
        changes: Fields of the recipe that are the script's own; these win.
    """
    settings: dict[str, Any] = {"backbone": backbone} | PAPER[backbone] | _CUT[args.scale]
    if args.scale == "smoke" and backbone != "mlp":
        settings["lr"] = 1e-3
    if args.scale == "cpu" and backbone == "mlp":
        settings |= _CHEAP
    if args.scale != "paper" and backbone not in SMALL:
        settings |= {"trace_every": 0, "warm_up": 0.0, "milestones": (), "image": 32}
        settings |= {"augment": False, "epochs": 3}
    if args.scale == "smoke" and backbone not in SMALL:
        settings |= {"per_class": 4, "epochs": 1, "image": 16 if backbone == "coatnet" else 32}
    settings["data"] = args.data or ("digits" if args.scale == "smoke" else paper_data)
    if backbone == "vit6":
        settings["attention_epochs"] = _seen_epochs(settings.get("epochs", Recipe.epochs))
    return Recipe(**settings | changes)


def _seen_epochs(total: int) -> tuple[int, ...]:
    step = max(total // 10, 1)
    return tuple(range(step, total + 1, step))


def seeds(args: argparse.Namespace, published: int = 10) -> list[int]:
    """The seeds of a script, of which the paper has so many; all start at 42."""
    count = args.seeds or min(SEEDS[args.scale], published)
    return list(range(FIRST_SEED, FIRST_SEED + count))


def budget_of(recipes: Sequence[Recipe], n_seeds: int) -> str:
    """What was spent, in words: images and epochs of each backbone, if they differ."""
    spent: dict[str, list[str]] = {}
    for backbone in dict.fromkeys(recipe.backbone for recipe in recipes):
        mine = [recipe for recipe in recipes if recipe.backbone == backbone]
        spent.setdefault(_in_words(mine), []).append(LABELS[backbone])
    words = list(spent)
    if len(words) > 1:
        words = [f"{'/'.join(names)} {text}" for text, names in spent.items()]
    data = "/".join(dict.fromkeys(Path(recipe.data).stem for recipe in recipes))
    return f"{data}, {', '.join(words)}, {counted(n_seeds, 'seed')}"


def counted(number: int, noun: str) -> str:
    """A number of things, in words.

    Examples:
        >>> counted(1, "seed"), counted(3, "epoch")
        ('1 seed', '3 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _in_words(recipes: Sequence[Recipe]) -> str:
    counts = sorted({recipe.per_class or 0 for recipe in recipes})
    least, most = (str(k or "all") for k in (counts[0], counts[-1]))
    images = least if least == most else f"{least}-{most}"
    images = "all images" if images == "all" else f"{images} images/class"
    return f"{images} x {counted(recipes[0].epochs, 'epoch')}"
