"""Does the credit that looks most like the gradient train best? (the credit audit, figure 2)

    python examples/credit_audit.py [--scale cpu] [--data cifar10.npz] [--seeds 3] [--epochs 30]

A four-block residual MLP is trained by State Bridge, Credit Bridge, direct feedback alignment and
backprop, with and without a scale penalty, and with frozen random blocks. Prints accuracy, deep
cosine, rho, nudging and loss decrease beside the published ones, and which orders of the methods
agree. State Bridge and Credit Bridge are independent implementations of described methods.
"""

from functools import partial

import matplotlib.pyplot as plt
import xarray as xr

import nudging
from lab.results.publish import Row, arguments, at_least_one, compare, publish
from lab.studies.credit_run import Case, joined, run
from lab.studies.credit_table import order_row, spent
from lab.studies.sweep import executing
from lab.training.local_training import Recipe
from lab.training.scales import counted
from resonance_toolkit import spread

SEEDS = (42, 123, 456, *range(457, 500))  # the first three are the published ones
METHODS = {f"{name}+pen": (name, {}) for name in ("SB", "CB", "DFA", "BP")}
METHODS |= {name: (name, {"penalty": 0.0}) for name in ("SB", "CB", "DFA", "BP")}
METHODS |= {"frozen": ("DFA", {"frozen": 4})}
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
    "BP": (None, None, 0.585, None, None),
    "DFA": (None, None, 0.301, None, None),
    "frozen": (None, None, 0.349, None, None),
}


def main(argv: list[str] | None = None) -> None:
    """Train and measure all methods over the seeds; print the table, save and draw."""
    parser = arguments(__doc__, output="results/credit_audit.nc")
    parser.add_argument("--epochs", type=at_least_one, help="of training; the scale's by default")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    args = parser.parse_args(argv)
    per_class, changes, count = BUDGET[args.scale]
    changes = changes | ({"epochs": args.epochs} if args.epochs else {})
    seeds = SEEDS[: args.seeds or count]
    data = args.data or ("digits" if args.scale == "smoke" else "cifar10")
    cases = [
        Case(name, seed, Recipe(**changes | own), data, per_class)
        for name, own in map(METHODS.__getitem__, args.methods)
        for seed in seeds
    ]
    with executing(args) as executor:
        work = partial(run, cache=args.cache)
        runs = dict(spread(work, cases, executor=executor, label="networks", unit="network"))
    result = joined([runs[i] for i in range(len(cases))], args.methods, seeds)
    audited = result.sel({"rule": [m for m in args.methods if m in AUDITED] or args.methods})
    figures = {}
    told = [name for name in METRICS if audited[name].fillna(0).any()]  # one epoch: no decrease
    if int((audited["diverged"] == 0).any("seed").sum()) > 1:  # an order needs two
        figures[""] = nudging.plot_dissociation(audited, metrics=told).figure
    for name, plot in {"nudge": nudging.plot_nudge, "cosine": nudging.plot_alignment}.items():
        figures[name], axes = plt.subplots(figsize=(8, 4), layout="constrained")
        plot(audited.sel(eta=0.01), ax=axes)
    budget = spent(data, per_class, counted(cases[0].recipe.epochs, "epoch"), len(seeds))
    publish(result, figures, table(result, args.scale), output=args.output, budget=budget)


def table(result: xr.Dataset, scale: str) -> list[Row]:
    """Published numbers and orders beside ours."""
    mean, rows = result.mean("seed"), []
    for method in (m for m in PUBLISHED if m in result["rule"]):
        for metric, published in zip(METRICS, PUBLISHED[method], strict=True):
            if published is not None:
                here = float(mean[metric].sel({"rule": method}))
                comparable = metric == "final_accuracy" and method not in AUDITED[:2]
                own = {"tolerance": 0.02 if comparable else None, "scale": scale}
                own |= {"signed": metric.startswith("deep"), "note": _lost(result, method)}
                rows.append(compare(f"{method} {metric}", published, here, **own))
    audited = [m for m in AUDITED if m in result["rule"]]
    for place, metric in enumerate(METRICS if len(audited) > 1 else ()):
        here = {m: float(mean[metric].sel({"rule": m})) for m in audited}
        rows.append(order_row(metric, {m: PUBLISHED[m][place] for m in audited}, here, scale))
    return rows


def _lost(result: xr.Dataset, method: str) -> str:
    diverged = int(result["diverged"].sel({"rule": method}).sum())
    return f"{diverged} of {result.sizes['seed']} networks diverged" if diverged else ""


if __name__ == "__main__":
    main()
