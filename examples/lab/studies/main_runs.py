"""The runs that most figures look at: plain, and with 20 branches at each layer."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import xarray as xr

from lab.results.publish import Row, publish
from lab.studies.sweep import executing, sweep
from lab.training.recipe import Recipe
from lab.training.scales import ALPHA_20, SMALL, base, budget_of, seeds

KINDS = ("plain", "asymmetric")


def main_runs(
    args: argparse.Namespace, backbones: Sequence[str] = SMALL, *, data: str = "cifar100"
) -> tuple[dict[str, xr.Dataset], str]:
    """Train (or find in the cache) both kinds over the seeds.

    Args:
        args: From `lab.results.publish.arguments`.
        backbones: Which.
        data: What the paper used.

    Returns:
        By backbone, what `lab.train` gives, over `training` and `seed`; and the budget in words.
    """
    chosen = seeds(args)
    recipes: list[Recipe] = []
    for backbone in backbones:
        plain = base(backbone, args, data)
        for recipe in (plain, replace(plain, n=20, alpha=ALPHA_20[backbone])):
            recipes += [replace(recipe, seed=seed) for seed in chosen]
    with executing(args) as executor:
        runs = iter(sweep(recipes, cache=args.cache, executor=executor))
    kind = xr.Variable("training", list(KINDS), {"long_name": "training"})
    seed = xr.Variable("seed", chosen, {"long_name": "seed"})
    found = {}
    for backbone in backbones:
        both = [_joined([next(runs) for _ in chosen], seed) for _ in KINDS]
        found[backbone] = _joined(both, kind)
    return found, budget_of(recipes, len(chosen))


def trace_of(run: xr.Dataset) -> xr.Dataset:
    """What `gradients.Trace` recorded of the asymmetric runs, over `seed`."""
    names = {"traced_layer": "layer", "traced_parameters": "n_parameters"}
    kept = [name for name, variable in run.data_vars.items() if "step" in variable.dims]
    trace = run[kept].sel(training="asymmetric", drop=True)
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
    drawn = {}
    for name in figures:
        drawn[name] = plt.figure(figsize=(6.4, 2.4))
        drawn[name].text(0.5, 0.5, words, ha="center", va="center")
    said = [replace(row, note="; ".join(filter(None, [words, row.note]))) for row in rows]
    publish(run[["diverged"]], drawn, said, output=output, budget=budget)


def _joined(runs: Sequence[xr.Dataset], dim: xr.Variable) -> xr.Dataset:
    # A diverged run has fewer steps than the others.
    return xr.concat(runs, dim, combine_attrs="drop_conflicts", join="outer", data_vars="all")
