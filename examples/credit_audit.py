"""Does the credit that looks most like the gradient train best? (the credit audit, figure 2)

    python examples/credit_audit.py [--scale cpu] [--data cifar10.npz] [--seeds 3] [--epochs 30]

A four-block residual MLP is trained by State Bridge, Credit Bridge, direct feedback alignment and
backprop, with and without a scale penalty, and with frozen random blocks. Prints accuracy, deep
cosine, rho, nudging and loss decrease beside the published ones, and which orders of the methods
agree. State Bridge and Credit Bridge are independent implementations of described methods.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import nudging
from lab.results.options import arguments, at_least_one, exit_showing
from lab.results.publish import publish
from lab.results.verdicts import Published, Row, compare, join_notes, printed_as
from lab.studies.credit_run import Case, join_cases, run_case
from lab.studies.credit_table import audit_obstacles, budget_in_words, order_row
from lab.studies.executing import executing
from lab.training.local_training import LEARNED, LocalRecipe
from lab.training.scales import plural
from resonance_toolkit import spread

SEEDS = (42, 123, 456, *range(457, 500))  # the first three are the published ones
METHODS = {  # the credit, and what the recipe changes
    "SB+pen": ("SB", {}),
    "CB+pen": ("CB", {}),
    "DFA+pen": ("DFA", {}),
    "BP+pen": ("BP", {}),
    "SB": ("SB", {"penalty": 0.0}),
    "CB": ("CB", {"penalty": 0.0}),
    "DFA": ("DFA", {"penalty": 0.0}),
    "BP": ("BP", {"penalty": 0.0}),
    "frozen": ("DFA", {"frozen": 4}),
}
AUDITED = ("SB+pen", "CB+pen", "DFA+pen")  # those that the figure compares
BUDGET = {  # images per class, what the recipe changes, seeds
    "smoke": (20, {"epochs": 2, "batch_size": 20, "width": 32}, 2),
    "cpu": (1000, {"epochs": 6}, 2),
    "paper": (None, {}, 3),
}
METRICS = ("deep_cosine", "deep_correlation", "final_accuracy", "deep_change", "loss_decrease")
PUBLISHED = {
    "SB+pen": (0.322, 0.402, 0.453, -1.93e-3, 0.447),
    "CB+pen": (0.679, 0.464, 0.360, -4.26e-4, 0.121),
    "DFA+pen": (0.151, 0.080, 0.360, -4.98e-5, 0.095),
    "BP+pen": (None, None, 0.532, None, None),
    "SB": (None, None, 0.213, None, None),
    "BP": (None, None, 0.585, None, None),
    "DFA": (None, None, 0.301, None, None),
    "frozen": (None, None, 0.349, None, None),
}
ROUNDING = 5e-4  # of accuracies that are printed without a deviation
DEVIATIONS = {  # what stands behind the "+-" of the same numbers, where one does
    "SB+pen": (0.007, 0.015, 0.003, 0.11e-3, 0.008),
    "CB+pen": (0.008, 0.025, 0.003, 0.24e-4, 0.003),
    "DFA+pen": (0.025, 0.011, 0.001, 0.44e-5, 0.007),
    "BP+pen": (None, None, 0.006, None, None),
    "BP": (None, None, 0.001, None, None),
    "DFA": (None, None, 0.005, None, None),
    "frozen": (None, None, 0.002, None, None),
}
# The nudge at eta = 0.01 by block, h_0 to h_3, for each published seed.
PUBLISHED_NUDGES = {
    "SB+pen": [
        (-3.597e-3, -2.378e-3, -1.701e-3, -1.259e-3),
        (-3.914e-3, -2.520e-3, -1.888e-3, -1.458e-3),
        (-4.026e-3, -2.811e-3, -1.904e-3, -1.445e-3),
    ],
    "CB+pen": [
        (-5.118e-4, -4.659e-4, -4.433e-4, -4.259e-4),
        (-4.539e-4, -4.164e-4, -3.898e-4, -3.719e-4),
        (-4.854e-4, -4.624e-4, -4.399e-4, -4.222e-4),
    ],
    "DFA+pen": [
        (-1.312e-4, -5.456e-5, -5.524e-5, -5.596e-5),
        (-1.029e-4, -3.057e-5, -4.645e-5, -5.681e-5),
        (-1.448e-4, -4.395e-5, -4.445e-5, -5.999e-5),
    ],
}
GRADIENT_IMAGES = "the published mean loss is over an unknown number of images, ours over 1024"
MORE_METRICS = ("last_norm", "last_gradient", "block_drift", "embedding_drift")
MORE_PUBLISHED = {
    "SB+pen": (Published(302, 8), printed_as("1.8e-4"), Published(14.8, 0.5), Published(7.0, 0.1)),
    "CB+pen": (
        Published(5680, 178),
        printed_as("1.9e-5"),
        Published(19.1, 0.6),
        Published(46.3, 1.5),
    ),
    "DFA+pen": (
        printed_as("1.3e4"),
        printed_as("1.6e-6"),
        Published(18.6, 0.5),
        Published(94.6, 1.4),
    ),
}


def main(argv: list[str] | None = None) -> None:
    """Train and measure all methods over the seeds; print the table, save and draw."""
    args = parse_args(argv)
    per_class, _, default_seeds = BUDGET[args.scale]
    seeds = SEEDS[: args.seeds or default_seeds]
    cases = cases_of(args, seeds)
    if args.show_recipe:
        exit_showing([_settings_of(case) for case in cases])

    # Networks come in the order in which they are finished, each with its number.
    with executing(args) as executor:
        work = partial(run_case, cache=args.cache)
        runs = dict(spread(work, cases, executor=executor, label="networks", unit="network"))
    result = join_cases([runs[index] for index in range(len(cases))], args.methods, seeds)

    epochs = plural(cases[0].recipe.epochs, "epoch")
    budget = budget_in_words(cases[0].data, per_class, epochs, len(seeds))
    case = cases[0]
    reasons = audit_obstacles(
        case.data, per_class, case.recipe.epochs, len(seeds), published_epochs=LocalRecipe.epochs
    )
    rows = table(result, reasons)
    publish(result, draw(result), rows, output=args.output, budget=budget)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__, output="results/credit_audit.nc")
    parser.add_argument("--epochs", type=at_least_one, help="of training; the scale's by default")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    return parser.parse_args(argv)


def cases_of(args: argparse.Namespace, seeds: Sequence[int]) -> list[Case]:
    """List the networks to train: seed by seed for each method."""
    per_class, changes, _ = BUDGET[args.scale]
    if args.epochs:
        changes = changes | {"epochs": args.epochs}
    data = args.data or ("digits" if args.scale == "smoke" else "cifar10")

    cases = []
    for method in args.methods:
        credit, method_changes = METHODS[method]
        recipe = LocalRecipe(**changes | method_changes)
        cases += [Case(credit, seed, recipe, data, per_class) for seed in seeds]
    return cases


def table(result: xr.Dataset, obstacles: Sequence[str]) -> list[Row]:
    """Compare published numbers and orders with ours, unless something stands in the way."""
    means = result.mean("seed")
    rows = []
    for method, published_numbers in PUBLISHED.items():
        if method not in result["rule"]:
            continue
        for metric, published in zip(METRICS, published_numbers, strict=True):
            if published is None:
                continue

            deviation = DEVIATIONS.get(method, (None,) * len(METRICS))[METRICS.index(metric)]
            note = join_notes(_origin(method), _count_diverged(result, method))
            values = result[metric].sel({"rule": method}).values
            quantity = f"{method} {metric}"
            paper = Published(published, deviation, rounding=ROUNDING)
            rows.append(compare(quantity, paper, values, obstacles=obstacles, note=note))

    audited = [method for method in AUDITED if method in result["rule"]]
    for method in audited:
        for metric, paper in zip(MORE_METRICS, MORE_PUBLISHED[method], strict=True):
            values = result[metric].sel({"rule": method}).values
            reasons = [*obstacles, GRADIENT_IMAGES] if metric == "last_gradient" else obstacles
            row = compare(
                f"{method} {metric}",
                paper,
                values,
                obstacles=reasons,
                note=_origin(method),
            )
            rows.append(row)
        rows += nudge_rows(result, method, obstacles)

    if len(audited) > 1:  # an order needs two
        for place, metric in enumerate(METRICS):
            published = {method: PUBLISHED[method][place] for method in audited}
            our_means = {method: float(means[metric].sel({"rule": method})) for method in audited}
            rows.append(order_row(metric, published, our_means, obstacles))
    return rows


def nudge_rows(result: xr.Dataset, method: str, obstacles: Sequence[str]) -> list[Row]:
    """Compare the nudge of each block; the published deviation is that over its three seeds."""
    changes = result["loss_change"].sel({"rule": method, "eta": 0.01})
    rows = []
    for block, numbers in enumerate(zip(*PUBLISHED_NUDGES[method], strict=True)):
        paper = Published(float(np.mean(numbers)), float(np.std(numbers)))
        values = changes.isel(layer=block).values
        quantity = f"{method} nudge at h_{block}"
        rows.append(compare(quantity, paper, values, obstacles=obstacles, note=_origin(method)))
    return rows


def draw(result: xr.Dataset) -> dict[str, Figure]:
    """Draw the metrics beside one another, and nudge and cosine by block."""
    methods = result["rule"].values.tolist()
    audited_methods = [method for method in methods if method in AUDITED] or methods
    audited = result.sel({"rule": audited_methods})

    figures = {}
    n_finite = int((audited["diverged"] == 0).any("seed").sum())
    if n_finite > 1:  # an order needs two
        # After one epoch there is no decrease of the loss to show.
        metrics = [name for name in METRICS if audited[name].fillna(0).any()]
        figures[""] = nudging.plot_dissociation(audited, metrics=metrics).figure

    for name, plot in {"nudge": nudging.plot_nudge, "cosine": nudging.plot_alignment}.items():
        figures[name], axes = plt.subplots(figsize=(8, 4), layout="constrained")
        plot(audited.sel(eta=0.01), ax=axes)
    return figures


def _origin(method: str) -> str:
    """Say which credits are not the published code."""
    is_bridge = METHODS[method][0] in LEARNED
    return "an independent implementation" if is_bridge else ""


def _count_diverged(result: xr.Dataset, method: str) -> str:
    n_diverged = int(result["diverged"].sel({"rule": method}).sum())
    return f"{n_diverged} of {result.sizes['seed']} networks diverged" if n_diverged else ""


def _settings_of(case: Case) -> dict[str, object]:
    settings = asdict(case)
    recipe = settings.pop("recipe")
    return settings | recipe


if __name__ == "__main__":
    main()
