"""Do learned credits find the gradient of a network that stays as it is? (the credit audit's gate)

    python examples/credit_gate.py [--scale cpu] [--data cifar10.npz] [--seeds 1]

A four-block residual MLP is trained by backprop and then left alone. State Bridge and Credit Bridge
are fitted to its hidden states; direct feedback has nothing to learn. Without training by credit
there is no adaptation of one to the other: this tests the estimators themselves. Prints cosine,
rho and nudge (eta = 0.003), means over h_1 ... h_3, beside the published ones.
"""

from collections.abc import Sequence
from dataclasses import asdict

import matplotlib.pyplot as plt
import xarray as xr

import nudging
from lab.data.images import load
from lab.data.samples import subset
from lab.results.options import arguments, exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Row, compare, printed_as
from lab.studies.credit_run import gauge_credits, join_cases
from lab.studies.credit_table import audit_obstacles, budget_in_words, order_row
from lab.training.local_training import LocalRecipe
from lab.training.scales import plural

SEEDS = (42, 123, 456, *range(457, 500))  # the first three are the published ones
CREDITS = {
    "SB": nudging.StateBridge,
    "CB": nudging.CreditBridge,
    "DFA": nudging.direct_feedback,
}
BUDGET = {  # images per class, what the recipe changes, epochs of fitting, seeds
    "smoke": (20, {"epochs": 2, "batch_size": 20, "width": 32}, 2, 1),
    "cpu": (500, {"epochs": 8}, 8, 1),
    "paper": (None, {"epochs": 100}, 100, 3),
}
PUBLISHED_EPOCHS = 100
METRICS = ("cosine", "correlation", "loss_change")
PUBLISHED = {  # as printed
    "SB": ("0.287", "0.246", "-9.57e-4"),
    "CB": ("0.115", "0.125", "-3.7e-4"),
    "DFA": ("0.006", "0.005", "-2.2e-5"),
}


def main(argv: list[str] | None = None) -> None:
    """Train by backprop, fit and measure the credits; print the table, save and draw."""
    args = arguments(__doc__, output="results/credit_gate.nc").parse_args(argv)
    per_class, changes, fitting_epochs, default_seeds = BUDGET[args.scale]
    data = args.data or ("digits" if args.scale == "smoke" else "cifar10")
    seeds = SEEDS[: args.seeds or default_seeds]
    recipe = LocalRecipe(penalty=0.0, **changes)

    if args.show_recipe:
        shared = {"method": "BP", "data": data, "per_class": per_class}
        shared |= {"fitting_epochs": fitting_epochs, **asdict(recipe)}
        exit_showing([shared | {"seed": seed} for seed in seeds])

    # Every credit is measured on the same network.
    images = subset(load(data), per_class)
    by_seed = [
        gauge_credits(images, seed, recipe, CREDITS, epochs=fitting_epochs) for seed in seeds
    ]
    runs = [results[name] for name in CREDITS for results in by_seed]
    result = join_cases(runs, list(CREDITS), seeds)

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    nudging.plot_alignment(result, ax=axes)

    epochs = f"{plural(recipe.epochs, 'epoch')} of backprop and {fitting_epochs} of fitting"
    budget = budget_in_words(data, per_class, epochs, len(seeds))
    reasons = audit_obstacles(
        data, per_class, recipe.epochs, len(seeds), published_epochs=PUBLISHED_EPOCHS
    )
    publish(result, figure, table(result, reasons), output=args.output, budget=budget)


def table(result: xr.Dataset, obstacles: Sequence[str]) -> list[Row]:
    """Compare published numbers and orders with ours, unless something stands in the way."""
    # The means over h_1 ... h_3, at the only eta there is.
    deep = result.isel(layer=slice(1, -1), eta=0).mean("layer")

    rows = []
    for place, metric in enumerate(METRICS):
        published = {name: printed_as(PUBLISHED[name][place]) for name in CREDITS}
        values = {name: deep[metric].sel({"rule": name}) for name in CREDITS}
        for name in CREDITS:
            quantity = f"{name} {metric}"
            rows.append(
                compare(quantity, published[name], values[name].values, obstacles=obstacles)
            )
        our_means = {name: float(values[name].mean()) for name in CREDITS}
        published_means = {name: paper.mean for name, paper in published.items()}
        rows.append(order_row(metric, published_means, our_means, obstacles))
    return rows


if __name__ == "__main__":
    main()
