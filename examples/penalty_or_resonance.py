"""Is it resonance, or a penalty on the features? (the central claim, on ten classes)

    python examples/penalty_or_resonance.py --scale paper --data cifar10.npz [--epochs 60]

A ViT-6L on 500 images of each class of CIFAR-10, for 200 epochs, three ways: plain; with 20
branches at each block, at the strength that the paper found for them, rescaled from 100 to 10
classes; and with the same branches, of which the static ones see no labels. What is left of those
is a pull along a fixed direction and a penalty on the features. If that alone brings the gain, it
is regularisation; if only labels do, the branches teach. Accuracy after the last and at the best
epoch, the cosine between the gradients, and attention along the way. The paper has no such runs on
CIFAR-10: no number here has a published one beside it, but the changes have their tests.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from lab.results.options import arguments, at_least_one, exit_showing
from lab.results.publish import publish
from lab.results.statistics import describe_test, mean_interval, paired
from lab.results.verdicts import Row
from lab.studies.executing import executing
from lab.studies.study import PROTOCOLS, accuracy_of
from lab.studies.sweep import sweep
from lab.training.recipe import Recipe
from lab.training.scales import (
    ALPHA_20,
    budget_of,
    recipe_for,
    remark_on_strength,
    seeds_for,
    strength_for,
)

ARMS: dict[str, dict[str, Any]] = {  # what each changes, beside the strength
    "plain": {},
    "labels": {"n": 20},
    "no labels": {"n": 20, "static_labels": False},
}
PER_CLASS = 500
SEEDS = 3
ATTENTION = ("entropy", "peak", "gini", "coverage")


def main(argv: list[str] | None = None) -> None:
    """Train every arm over the seeds; print what they reach, save and draw."""
    args = parse_args(argv)
    recipes = recipes_of(args)
    seeds = seeds_for(args, SEEDS)
    seeded = [replace(recipe, seed=seed) for recipe in recipes.values() for seed in seeds]
    if args.show_recipe:
        exit_showing([asdict(recipe) for recipe in seeded])

    # The runs come in the order of the recipes: by arm, then seed.
    with executing(args) as executor:
        runs = iter(sweep(seeded, cache=args.cache, executor=executor))
    by_arm = {arm: [next(runs) for _ in seeds] for arm in recipes}

    result = join_runs(by_arm, seeds)
    remark = remark_on_strength(next(iter(recipes.values())), ALPHA_20["vit6"])
    budget = "; ".join(filter(None, [budget_of(list(recipes.values()), len(seeds)), remark]))
    publish(result, draw(result), rows_of(result), output=args.output, budget=budget)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__, output="results/penalty_or_resonance.nc")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--epochs", type=at_least_one, help="the scale's by default")
    parser.add_argument("--test-per-class", type=at_least_one, help="test images; all by default")
    return parser.parse_args(argv)


def recipes_of(args: argparse.Namespace) -> dict[str, Recipe]:
    """Make the recipe of each arm that is asked for, in the order of `ARMS`."""
    budget = {"per_class": PER_CLASS} if args.scale == "paper" else {}
    budget |= {
        name: getattr(args, name)
        for name in ("epochs", "test_per_class")
        if getattr(args, name) is not None
    }
    plain = recipe_for("vit6", args, "cifar10", **budget)
    alpha = strength_for(plain, ALPHA_20["vit6"])

    recipes = {}
    for arm, changes in ARMS.items():
        if arm in args.arms:
            strength = {"alpha": alpha} if changes else {}
            recipes[arm] = replace(plain, **changes, **strength)
    return recipes


def join_runs(by_arm: Mapping[str, Sequence[xr.Dataset]], seeds: Sequence[int]) -> xr.Dataset:
    """Join runs over `arm` and `seed`, with `last_accuracy` and `best_accuracy` in percent."""
    arm_label = xr.Variable("arm", list(by_arm), {"long_name": "way of training"})
    seed_label = xr.Variable("seed", list(seeds), {"long_name": "seed"})
    runs_by_arm = [_join(runs, seed_label) for runs in by_arm.values()]
    result = _join(runs_by_arm, arm_label)

    # Maps of every sample at every epoch are large, and their statistics are what is drawn.
    result = result.drop_vars("weight", errors="ignore")
    for protocol, title in PROTOCOLS.items():
        percent = [[100 * accuracy_of(run, protocol) for run in runs] for runs in by_arm.values()]
        attributes = {"long_name": f"test accuracy, {title}", "units": "%"}
        result[f"{protocol}_accuracy"] = (("arm", "seed"), percent, attributes)
    return result


def rows_of(result: xr.Dataset) -> list[Row]:
    """List what each arm reaches by both protocols, and its change from the plain one."""
    arms = result["arm"].values.tolist()
    rows = []
    for protocol, title in PROTOCOLS.items():
        accuracy = result[f"{protocol}_accuracy"]
        rows += [_row(f"{arm}, {title} / %", accuracy.sel(arm=arm).values) for arm in arms]

        other_arms = [arm for arm in arms if arm != "plain"]
        if "plain" not in arms or not other_arms:
            continue

        # Tested together, so that p values are corrected for the number of arms.
        plain = accuracy.sel(arm="plain", drop=True)
        changes = paired(plain.expand_dims(arm=other_arms), accuracy.sel(arm=other_arms))
        for arm in other_arms:
            values = (accuracy.sel(arm=arm) - plain).values
            note = describe_test(changes.sel(arm=arm))
            rows.append(_row(f"{arm} - plain, {title} / points", values, note))

    if "cosine_total" in result:
        for arm in result["arm"].values.tolist():
            cosines = result["cosine_total"].sel(arm=arm)
            if bool(cosines.notnull().any()):
                rows.append(_row(f"{arm}, mean cosine of gradients", cosines.mean("step").values))
    return rows


def _row(quantity: str, values: np.ndarray, note: str = "") -> Row:
    """Put a mean with its interval in a row; there is nothing published to compare it with."""
    finite_values = values[np.isfinite(values)].tolist()
    mean, low, high = mean_interval(finite_values)
    ends = {"low": low, "high": high} if len(finite_values) > 1 else {}
    return Row(quantity, None, mean, note=note, **ends)


def draw(result: xr.Dataset) -> dict[str, Figure]:
    """Draw accuracy and cosine along training; and attention of the last block."""
    figure, (test_ax, train_ax, cosine_ax) = plt.subplots(
        1, 3, figsize=(13, 4), layout="constrained"
    )
    for arm in result["arm"].values.tolist():
        part = result.sel(arm=arm)
        for ax, name in ((test_ax, "test_accuracy"), (train_ax, "train_accuracy")):
            _draw_curves(part[name], "epoch", arm, ax)
        if "cosine_total" in part and bool(part["cosine_total"].notnull().any()):
            smooth = part["cosine_total"].rolling(step=9, min_periods=1, center=True).mean()
            _draw_curves(smooth, "step", arm, cosine_ax)

    test_ax.set(title="test accuracy", xlabel="epoch")
    train_ax.set(title="training accuracy", xlabel="epoch")
    cosine_ax.set(title="cosine, main and auxiliary gradient, smoothed", xlabel="update")
    cosine_ax.axhline(0, color="0.6", linewidth=1)
    test_ax.legend(fontsize=8)

    figures = {"": figure}
    if "seen_epoch" in result.dims:
        figures["attention"] = _draw_attention(result)
    return figures


def _draw_attention(result: xr.Dataset) -> Figure:
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
    for ax, name in zip(axes, ATTENTION, strict=True):
        means = result[name].isel(layer=-1).mean(["sample", "head"])
        for arm in result["arm"].values.tolist():
            _draw_curves(means.sel(arm=arm), "seen_epoch", arm, ax)
        ax.set(title=f"{name}, last block", xlabel="epoch")
    axes[0].legend(fontsize=8)
    return figure


def _draw_curves(values: xr.DataArray, dim: str, arm: str, ax: plt.Axes) -> None:
    """Draw the mean over seeds, and every seed faintly."""
    colour = f"C{list(ARMS).index(arm)}"
    values = values.transpose("seed", dim)
    ax.plot(values[dim], values.mean("seed"), color=colour, label=arm)
    ax.plot(values[dim], values.values.T, color=colour, alpha=0.25, linewidth=0.8)


def _join(runs: Sequence[xr.Dataset], dim: xr.Variable) -> xr.Dataset:
    # An outer join: the plain runs have no cosine, and a diverged one fewer steps.
    return xr.concat(runs, dim, combine_attrs="drop_conflicts", join="outer", data_vars="all")


if __name__ == "__main__":
    main()
