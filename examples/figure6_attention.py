"""Does asymmetric training spread the attention of a vision transformer? (figures 6, 9; table 27)

    python examples/figure6_attention.py [--scale cpu] [--data cifar10.npz]

Attention of the class token of a ViT-6L on test images, plain and with 20 branches at each block,
along training. The paper's epochs 20, 60 and 100 become a fifth, three fifths and all of the
epochs where there are fewer than 100.
"""

from collections.abc import Sequence

import xarray as xr

import attention
from lab.results.publish import Row, arguments, compare, publish
from lab.studies.main_runs import main_runs, publish_nothing_seen
from lab.training.scales import base

STAGES = (20, 60, 100)
NOTHING = [(float("nan"), float("nan"))] * len(STAGES)  # plain, asymmetric
PUBLISHED = {  # table 27: plain, asymmetric; at the three stages
    "peak": ([0.092, 0.063, 0.051], [0.053, 0.049, 0.045]),
    "entropy": ([3.73, 3.89, 3.97], [4.02, 4.03, 4.05]),
    "gini": ([0.471, 0.415, 0.374], [0.254, 0.287, 0.302]),
    "coverage": ([0.58, 0.70, 0.84], [0.96, 0.95, 0.94]),
}


def main(argv: list[str] | None = None) -> None:
    """Train both kinds (or read the runs); print table 27, save and draw."""
    args = arguments(__doc__, output="results/figure6.nc").parse_args(argv)
    runs, budget = main_runs(args, ["vit6"])
    if "seen_epoch" not in runs["vit6"].dims:
        rows = [row for name in PUBLISHED for row in _compared(name, NOTHING, args.scale)]
        kept = {"figures": ["", "statistics"], "output": args.output, "budget": budget}
        return publish_nothing_seen(runs["vit6"], rows, **kept)
    seen = seen_of(runs["vit6"])
    last = min(int(seen["epoch"][-1]), 100)
    stages = seen.sel(epoch=[last * stage / 100 for stage in STAGES], method="nearest")
    rows = [row for name in PUBLISHED for row in rows_of(name, stages, args.scale)]
    maps = stages.isel(seed=0, layer=[0, 2, 5])
    curves = seen.isel(layer=[-1]).drop_vars("weight")
    pictures = attention.plot_maps(maps, base("vit6", args, "cifar100").images().x_test)
    panels = attention.plot_statistics(curves, x="epoch", hue="training")
    figures = {"": pictures[0, 0].figure, "statistics": panels[0, 0].figure}
    publish(seen.drop_vars("weight"), figures, rows, output=args.output, budget=budget)


def seen_of(run: xr.Dataset) -> xr.Dataset:
    """What `attention.capture` found, over `training`, `seed` and `epoch`."""
    kept = [name for name, variable in run.data_vars.items() if "seen_epoch" in variable.dims]
    return run[kept].drop_vars("epoch", errors="ignore").rename(seen_epoch="epoch")


def rows_of(name: str, stages: xr.Dataset, scale: str) -> list[Row]:
    """What training with branches changes, in the last layer; both values in the note."""
    means = stages[name].isel(layer=-1).mean(["sample", "head", "seed"])
    plain, asymmetric = (means.sel(training=kind).values for kind in ("plain", "asymmetric"))
    return _compared(name, list(zip(plain.tolist(), asymmetric.tolist(), strict=True)), scale)


def _compared(name: str, here: Sequence[tuple[float, float]], scale: str) -> list[Row]:
    rows = []
    for index, (a, b) in enumerate(here):
        before, after = (values[index] for values in PUBLISHED[name])
        note = f"{a:.3g} to {b:.3g}, published {before} to {after}"
        label = f"change of {name}, stage {index + 1}"
        rows.append(compare(label, round(after - before, 4), b - a, scale=scale, note=note))
    return rows


if __name__ == "__main__":
    main()
