"""What do the branches do to losses and gradient norms along training? (figure 7)

    python examples/figure7_dynamics.py [--scale cpu] [--data cifar10.npz]

Main and auxiliary loss, and the norm of the whole gradient, of MLP, CNN and ViT-6L, plain and with
20 branches at each layer. The paper states in words what it sees; numbers for these words: the
mean gradient norm with branches over that without, and the last auxiliary loss over the first.
"""

import math

import matplotlib.pyplot as plt
import xarray as xr

import gradients
from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import compare_with_range
from lab.studies.main_runs import KINDS, main_runs, obstacles_by_backbone
from lab.training.scales import LABELS, SMALL

WORDS = {  # gradient norms with branches, auxiliary loss along training
    "mlp": ("reduced", "stable"),
    "cnn": ("increased", "diverges"),
    "vit6": ("stable", "converges"),
}
RATIOS = {  # our reading of the words: between these two
    "reduced": (-math.inf, 1.0),
    "increased": (1.0, math.inf),
    "stable": (0.5, 2.0),
    "diverges": (2.0, math.inf),
    "converges": (-math.inf, 0.5),
}


def main(argv: list[str] | None = None) -> None:
    """Train both kinds (or read the runs); print the ratios, save and draw."""
    parser = arguments(__doc__, output="results/figure7.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL, default=list(SMALL))
    args = parser.parse_args(argv)
    runs, budget = main_runs(args, args.architectures)

    label = xr.Variable("architecture", list(runs), {"long_name": "backbone"})
    traces = [run[["loss_main", "loss_aux", "gradient_norm"]] for run in runs.values()]
    result = xr.concat(traces, label, combine_attrs="drop_conflicts", join="outer")

    norms = result["gradient_norm"].mean("step")
    plain, asymmetric = (norms.sel(training=kind, drop=True) for kind in KINDS)
    result["norm_ratio"] = (asymmetric / plain).assign_attrs(
        long_name="mean gradient norm, asymmetric over plain"
    )

    obstacles = obstacles_by_backbone(args, args.architectures)
    rows = []
    for name in runs:
        norm_word, loss_word = WORDS[name]
        ratios = {
            "gradient norm with / without": (
                norm_word,
                result["norm_ratio"].sel(architecture=name),
            ),
            "auxiliary loss last / first": (loss_word, loss_ratio(runs[name])),
        }
        for title, (word, values) in ratios.items():
            row = compare_with_range(
                f"{LABELS[name]}, {title}",
                word,
                values.values,
                RATIOS[word],
                obstacles=obstacles[name],
                note=f"we take {word!r} as {RATIOS[word][0]:g} to {RATIOS[word][1]:g}",
            )
            rows.append(row)
    publish(result, draw(runs), rows, output=args.output, budget=budget)


def loss_ratio(run: xr.Dataset) -> xr.DataArray:
    """Divide the last auxiliary loss by the first, for each seed; NaN if nothing was traced."""
    losses = run["loss_aux"].sel(training="asymmetric")

    # A run that diverged has fewer steps than the others: its last is the first at which the number
    # of measured steps is what it ends with.
    latest_step = losses.notnull().cumsum("step").argmax("step")
    last = losses.isel(step=latest_step).drop_vars("step")
    return last / losses.isel(step=0, drop=True)


def draw(runs: dict[str, xr.Dataset]) -> plt.Figure:
    """Draw losses above, gradient norms below, a column for each architecture; the first seed."""
    size = (1.6 + 3.8 * len(runs), 6.5)
    figure, axes = plt.subplots(
        2, len(runs), figsize=size, layout="constrained", sharex="col", squeeze=False
    )
    for (loss_ax, norm_ax), (name, run) in zip(axes.T, runs.items(), strict=True):
        kinds = {kind: run.sel(training=kind).isel(seed=0) for kind in KINDS}
        kinds["plain"] = kinds["plain"].drop_vars("loss_aux")  # all NaN there
        gradients.plot_dynamics(kinds, axes=[loss_ax, norm_ax])

        loss_ax.set_title(LABELS[name])
        loss_ax.set_yscale("log")
        loss_ax.set_xlabel("")
    return figure


if __name__ == "__main__":
    main()
