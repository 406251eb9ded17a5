"""Can the search for alpha be spared? (tables 15-19, 22, 23)

    python examples/table15_alpha_search.py [--scale cpu] [--data cifar10.npz]

With 20 branches at each layer: the ten-point grid (CIFAR) and the two-stage search (ImageNet), both
on a held-out tenth of the training images, against two rules that adapt the strength while they
train, and so need one run: `balance` (auxiliary gradient at half the main one's) and `gate`.
"""

from dataclasses import replace

import numpy as np
import xarray as xr

from lab.alpha_search import METHODS, compare_searches, draw_searches, fine
from lab.report import Row, arguments, publish
from lab.scales import ALPHA_20, LABELS, SMALL, base, budget_of, counted, seeds
from lab.sweep import executing, sweep

TABLE_23 = (0.100, 0.133, 0.178, 0.237, 0.316, 0.422, 0.562, 0.750, 1.000)
STEP = 10 ** (1 / 3)  # between two values of the grid


def main(argv: list[str] | None = None) -> None:
    """Search every architecture over the seeds; print what each method finds, save and draw."""
    parser = arguments(__doc__, output="results/table15.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL)
    args = parser.parse_args(argv)
    names = args.architectures or (SMALL if args.scale == "paper" else ("mlp",))
    chosen = seeds(args, 10 if args.scale == "paper" else 1)
    recipes = [replace(base(name, args, "cifar100"), n=20) for name in names]
    with executing(args) as executor:

        def run(wanted: list) -> list[xr.Dataset]:
            return sweep(wanted, cache=args.cache, executor=executor)

        found = [compare_searches(recipe, chosen, run) for recipe in recipes]
    labels = [LABELS[name] for name in names]
    label = xr.Variable("architecture", labels, {"long_name": "backbone"})
    result = xr.concat(found, label, combine_attrs="drop_conflicts", data_vars="all")
    published = {LABELS[name]: ALPHA_20[name] for name in names}
    same = np.allclose(fine(10**-0.5), TABLE_23, atol=5e-4)
    words = "0.1 ... 1", "0.1 ... 1" if same else str(fine(10**-0.5).round(3))
    rows = [Row("candidates around 0.316", *words, "agrees" if same else "disagrees", "table 23")]
    rows += [row for name in labels for row in rows_of(name, result, published[name], args.scale)]
    budget = budget_of(recipes, len(chosen))
    publish(result, draw_searches(result, published), rows, output=args.output, budget=budget)


def rows_of(name: str, result: xr.Dataset, published: float, scale: str) -> list[Row]:
    """The grid's choice agrees within one step; then what every method reaches, and its cost."""
    part = result.sel(architecture=name)
    alpha = float(part["alpha"].sel({"search": "grid"}).median())
    verdict, note = "not comparable", "median over seeds"
    if scale == "paper":
        verdict = "agrees" if abs(np.log(alpha / published)) <= np.log(STEP) + 1e-6 else "disagrees"
        note += "; tolerance: one step of the grid"
    rows = [Row(f"{name}, alpha of the grid", published, alpha, verdict, note)]
    for method in METHODS:
        accuracy = float(part["accuracy"].sel({"search": method}).mean())
        runs = counted(int(part["n_runs"].sel({"search": method})), "run")
        rows.append(Row(f"{name}, accuracy by {method} / %", None, accuracy, note=runs))
    return rows


if __name__ == "__main__":
    main()
