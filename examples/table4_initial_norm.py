"""Do branches reduce the initial gradient, or only the mean over parameters? (table 4)

    python examples/table4_initial_norm.py [--scale cpu] [--data cifar10.npz]

Branches beside a network do not change its output, so they cannot change the gradient of its main
loss: over the backbone the norm stays what it was. Per parameter, branches counted, it falls by
the dilution factor sqrt(backbone / (backbone + branches)), which needs no data. Always measured on
32 x 32 images with a head of 100 classes, to have the paper's parameter counts (tables 7 and 8).
"""

import xarray as xr

from lab.results.publish import Row, arguments, compare, publish
from lab.studies.initial_gradient import draw_reductions, measure
from lab.training.scales import LABELS, base, counted, seeds

BRANCHES = (1, 20, 300)
PUBLISHED = {  # change of the initial gradient norm in percent, and its deviation over seeds
    "mlp": [(-29.86, 20.35), (-65.38, 1.95), (-90.40, 0.72)],
    "cnn": [(-16.64, 4.79), (-67.22, 5.52), (-90.18, 2.38)],
    "vit6": [(-3.40, 0.47), (-33.68, 3.62), (-68.78, 8.85)],
}
SAMPLES = {"smoke": 20, "cpu": 500, "paper": 500}


def main(argv: list[str] | None = None) -> None:
    """Measure every number of branches over the seeds; print the table, save and draw."""
    args = arguments(__doc__, output="results/table4.nc").parse_args(argv)
    chosen = seeds(args, 1 if args.scale == "smoke" else 5)  # dilution does not vary
    by_backbone = []
    for backbone in PUBLISHED:
        recipe, samples = base(backbone, args, "cifar100"), SAMPLES[args.scale]
        found = [[measure(recipe, n, seed, samples) for n in BRANCHES] for seed in chosen]
        number = xr.Variable("n", list(BRANCHES), {"long_name": "branches at each layer"})
        over_n = [xr.concat(row, number, combine_attrs="drop_conflicts") for row in found]
        seed = xr.Variable("seed", chosen, {"long_name": "seed"})
        by_backbone.append(xr.concat(over_n, seed, combine_attrs="drop_conflicts"))
    label = xr.Variable("architecture", list(PUBLISHED), {"long_name": "backbone"})
    result = xr.concat(by_backbone, label, combine_attrs="drop_conflicts")
    rows = [row for name in PUBLISHED for row in rows_of(name, result.sel(architecture=name))]
    data = base("mlp", args, "cifar100").data
    budget = f"{data.rsplit('/', 1)[-1]}, {SAMPLES[args.scale]} images, "
    budget += counted(len(chosen), "seed")
    publish(result, draw_reductions(result, PUBLISHED), rows, output=args.output, budget=budget)


def rows_of(name: str, found: xr.Dataset) -> list[Row]:
    """Dilution beside the published reduction: agrees within the published deviation."""
    rows = []
    for n, (published, deviation) in zip(BRANCHES, PUBLISHED[name], strict=True):
        here = found.sel(n=n)
        alone = float(abs(here["change_backbone"]).max())
        note = f"the backbone's own norm changes by {alone:.2g} %"
        free = {"budget_free": True, "tolerance": deviation, "origin": "as published"}
        value = float(here["reduction"].mean())
        quantity = f"{LABELS[name]}, {n} x, dilution / %"
        rows.append(compare(quantity, published, value, scale="smoke", note=note, **free))
    return rows


if __name__ == "__main__":
    main()
