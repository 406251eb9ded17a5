"""The runs that most figures look at: plain, and with 20 branches at each layer."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib.pyplot as plt
import xarray as xr

from lab.results.options import exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Row, join_notes
from lab.studies.conditions import conditions_of, obstacles, published_conditions
from lab.studies.executing import executing
from lab.studies.sweep import sweep
from lab.training.recipe import Recipe
from lab.training.scales import (
    ALPHA_20,
    SMALL,
    budget_of,
    recipe_for,
    remark_on_strength,
    seeds_for,
    strength_for,
)

KINDS = ("plain", "asymmetric")


def main_runs(
    args: argparse.Namespace, backbones: Sequence[str] = SMALL, *, data: str = "cifar100"
) -> tuple[dict[str, xr.Dataset], str]:
    """Train (or find in the cache) both kinds over the seeds.

    With `--show-recipe` the recipes are printed instead, and the program ends.

    Args:
        args: From `lab.results.options.arguments`.
        backbones: Which.
        data: What the paper used.

    Returns:
        By backbone, what `lab.training.train` gives, over `training` and `seed`; and the budget in
        words.
    """
    seeds = seeds_for(args)
    recipes: list[Recipe] = []
    for backbone in backbones:
        plain = recipe_for(backbone, args, data)
        alpha = strength_for(plain, ALPHA_20[backbone])
        asymmetric = replace(plain, n=20, alpha=alpha)
        for recipe in (plain, asymmetric):
            recipes += [replace(recipe, seed=seed) for seed in seeds]

    if args.show_recipe:
        exit_showing([asdict(recipe) for recipe in recipes])

    # The runs come in the order of the recipes: by backbone, then kind, then seed.
    with executing(args) as executor:
        runs = iter(sweep(recipes, cache=args.cache, executor=executor))
    kind_label = xr.Variable("training", list(KINDS), {"long_name": "training"})
    seed_label = xr.Variable("seed", seeds, {"long_name": "seed"})
    by_backbone = {}
    for backbone in backbones:
        kinds = [_join([next(runs) for _ in seeds], seed_label) for _ in KINDS]
        by_backbone[backbone] = _join(kinds, kind_label)

    # Figures of other data than CIFAR-100 say what became of the strengths.
    remarks = [
        remark_on_strength(recipe_for(backbone, args, data), ALPHA_20[backbone])
        for backbone in backbones
    ]
    distinct_remarks = dict.fromkeys(remark for remark in remarks if remark)
    return by_backbone, "; ".join([budget_of(recipes, len(seeds)), *distinct_remarks])


def obstacles_by_backbone(
    args: argparse.Namespace,
    backbones: Sequence[str] = SMALL,
    *,
    data: str = "cifar100",
    published_seeds: int | None = None,
) -> dict[str, list[str]]:
    """Say, by backbone, what keeps these runs from being compared with the paper's.

    Args:
        args, backbones, data: As for `main_runs`.
        published_seeds: How many the paper has; None, as for most figures, where it does not say.
    """
    n_seeds = len(seeds_for(args))
    return {
        backbone: obstacles(
            conditions_of(recipe_for(backbone, args, data), n_seeds),
            published_conditions(backbone, data, published_seeds),
        )
        for backbone in backbones
    }


def trace_of(run: xr.Dataset) -> xr.Dataset:
    """Return what `gradients.Trace` recorded of the asymmetric runs, over `seed`."""
    traced_names = [name for name, variable in run.data_vars.items() if "step" in variable.dims]
    trace = run[traced_names].sel(training="asymmetric", drop=True)

    # The `layer` that is dropped is that of attention, if any was measured.
    names = {"traced_layer": "layer", "traced_parameters": "n_parameters"}
    return trace.drop_vars("layer", errors="ignore").rename(names)


def publish_nothing_seen(
    run: xr.Dataset, rows: Sequence[Row], *, figures: Sequence[str], output: Path, budget: str
) -> None:
    """Write and print, in place of a figure of attention, that every run diverged before any.

    Args:
        run: From `main_runs`, without `seen_epoch`.
        rows: What the figure compares, undefined here.
        figures: Names of its figures, as for `lab.results.publish.publish`.
        output, budget: As for `lab.results.publish.publish`.
    """
    words = "all runs diverged before attention was measured"
    placeholders = {}
    for name in figures:
        placeholders[name] = plt.figure(figsize=(6.4, 2.4))
        placeholders[name].text(0.5, 0.5, words, ha="center", va="center")

    noted_rows = [replace(row, note=join_notes(words, row.note)) for row in rows]
    publish(run[["diverged"]], placeholders, noted_rows, output=output, budget=budget)


def _join(runs: Sequence[xr.Dataset], dim: xr.Variable) -> xr.Dataset:
    # An outer join, since a diverged run has fewer steps than the others.
    return xr.concat(runs, dim, combine_attrs="drop_conflicts", join="outer", data_vars="all")
