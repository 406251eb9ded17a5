"""What a number was measured under, and what keeps ours from being compared with the paper's."""

from dataclasses import dataclass

from lab.data.identity import NAMES, identify
from lab.data.images import load
from lab.training.recipe import Recipe
from lab.training.scales import PAPER, plural


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The data and the budget of a measurement.

    Attributes:
        data: Which set, as `lab.data.identity.identify` calls it.
        epochs: Of training; None where nothing is trained, and the budget is one of images.
        per_class: Training images of each class; None for all.
        seeds: How many; None where the paper does not say.
        complete: Whether all test images are the judges, and the set's own.
    """

    data: str
    epochs: int | None = None
    per_class: int | None = None
    seeds: int | None = None
    complete: bool = True


def conditions_of(recipe: Recipe, n_seeds: int) -> Conditions:
    """Say what a recipe's runs are made under, the data by their content."""
    is_complete = recipe.test_per_class is None and not recipe.held_out
    return Conditions(
        data=identify(load(recipe.data)),
        epochs=recipe.epochs,
        per_class=recipe.per_class,
        seeds=n_seeds,
        complete=is_complete,
    )


def published_conditions(
    backbone: str, data: str, seeds: int | None, per_class: int | None = None
) -> Conditions:
    """Say what the paper's runs were made under.

    Args:
        backbone: As for `Recipe`.
        data: A name in `lab.data.identity.NAMES`.
        seeds: How many the paper has; None where it does not say.
        per_class: Training images of each class; None for all.
    """
    epochs = PAPER[backbone].get("epochs", Recipe.epochs)
    return Conditions(data=NAMES[data], epochs=epochs, per_class=per_class, seeds=seeds)


def obstacles(ours: Conditions, paper: Conditions) -> list[str]:
    """List what keeps a number from being compared with the paper's; nothing if all is alike.

    There may be more seeds than the paper has. Epochs must be as many: accuracy falls again where
    training goes on.

    Examples:
        >>> paper = Conditions(data="CIFAR-10", epochs=200, seeds=10)
        >>> obstacles(Conditions(data="digits", epochs=3, seeds=2), paper)
        ['digits, not CIFAR-10', '3 epochs, not 200', '2 seeds, not 10']
        >>> obstacles(Conditions(data="CIFAR-10", epochs=200, seeds=12), paper)
        []
    """
    reasons = []
    if ours.data != paper.data:
        reasons.append(f"{ours.data}, not {paper.data}")

    if ours.epochs != paper.epochs and ours.epochs is not None:
        reasons.append(f"{plural(ours.epochs, 'epoch')}, not {paper.epochs or 'any'}")

    if ours.per_class != paper.per_class:
        counts = [str(count or "all") for count in (ours.per_class, paper.per_class)]
        reasons.append(f"{counts[0]} images per class, not {counts[1]}")

    if not ours.complete:
        reasons.append("a part of the test images")

    if paper.seeds is not None and ours.seeds is not None and ours.seeds < paper.seeds:
        reasons.append(f"{plural(ours.seeds, 'seed')}, not {paper.seeds}")
    return reasons
