"""The cells of a table that compares plain with asymmetric training, and how they are called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import xarray as xr

from lab.training.recipe import Recipe

Content = TypeVar("Content")

Protocol = Literal["last", "best"]

# A line of a published table: plain and its +-, asymmetric and its +-, the p value as printed.
Line = tuple[float, float, float, float, str]

TITLES = {
    "n": "branches at each layer",
    "per_class": "training images per class",
    "flipped": "flipped labels / %",
}


@dataclass(frozen=True)
class Cell:
    """One comparison.

    Attributes:
        labels: Where it stands in the table: a value for each of its dimensions.
        plain, asymmetric: Both recipes; their seeds do not matter.
        published: Accuracies in percent, plain and asymmetric.
        alphas: The strength by seed, where it was searched by seed.
        deviations: What stands behind the "+-" of both accuracies.
        p: The paper's p value of the change, as it is printed.
        data: The paper's data, a name in `lab.data.identity.NAMES`.
        per_class: How many training images of each class the paper has; None for all.
        protocol: Whether the paper's accuracy is that of the last or of the best epoch. It does
            not say; see docs/recipe.md for how we tell.
        remark: What else sets our runs apart from the paper's, for the notes.
    """

    labels: Mapping[str, str | int | float]
    plain: Recipe
    asymmetric: Recipe
    published: tuple[float, float] | None = None
    alphas: Mapping[int, float] | None = None
    deviations: tuple[float, float] | None = None
    p: str = ""
    data: str = "cifar100"
    per_class: int | None = None
    protocol: Protocol = "last"
    remark: str = ""

    def recipes(self, seed: int) -> tuple[Recipe, Recipe]:
        """Return both recipes with this seed."""
        alpha = (self.alphas or {}).get(seed, self.asymmetric.alpha)
        plain = replace(self.plain, seed=seed)
        asymmetric = replace(self.asymmetric, seed=seed, alpha=alpha)
        return plain, asymmetric


def printed(line: Line) -> dict[str, Any]:
    """Return what a published line says, as fields of a `Cell`."""
    plain, plain_deviation, asymmetric, asymmetric_deviation, p = line
    return {
        "published": (plain, asymmetric),
        "deviations": (plain_deviation, asymmetric_deviation),
        "p": p,
    }


def chosen_tables(tables: Mapping[str, Content], only: Sequence[str] | None) -> dict[str, Content]:
    """Return the tables that `--only` asks for, in their own order; all without it."""
    return {name: table for name, table in tables.items() if not only or name in only}


def name_label(dimension: str, value: object) -> str:
    """Write a label for people.

    Examples:
        >>> name_label("n", 20), name_label("architecture", "MLP"), name_label("flipped", 40)
        ('20 x', 'MLP', 'flipped labels / %: 40')
    """
    if isinstance(value, str):
        return value
    if dimension == "n":
        return f"{value} x"
    return f"{TITLES.get(dimension, dimension)}: {value}"


def why_undefined(part: xr.Dataset) -> str:
    """Say why there is no change to report: of each pair, one run or both diverged."""
    all_diverged = bool(part["accuracy"].isnull().all())
    return "all runs diverged" if all_diverged else "a run of every pair diverged"
