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
from lab.results.report import Row, arguments, publish
from lab.studies.main_runs import KINDS, main_runs
from lab.training.scales import LABELS

WORDS = {  # gradient norms with branches, auxiliary loss along training
    "mlp": ("reduced", "stable"),
    "cnn": ("increased", "diverges"),
    "vit6": ("stable", "converges"),
}
RULES = {  # our reading of the words, for the ratios
    "reduced": lambda ratio: ratio < 1,
    "increased": lambda ratio: ratio > 1,
    "stable": lambda ratio: 0.5 < ratio < 2,
    "diverges": lambda ratio: ratio > 2,
    "converges": lambda ratio: ratio < 0.5,
}


def main(argv: list[str] | None = None) -> None:
    """Train both kinds (or read the runs); print the ratios, save and draw."""
    args = arguments(__doc__, output="results/figure7.nc").parse_args(argv)
    runs, budget = main_runs(args)
    label = xr.Variable("architecture", list(runs), {"long_name": "backbone"})
    kept = [run[["loss_main", "loss_aux", "gradient_norm"]] for run in runs.values()]
    result = xr.concat(kept, label, combine_attrs="drop_conflicts", join="outer")
    norms = result["gradient_norm"].mean(["step", "seed"])
    result["norm_ratio"] = norms.sel(training="asymmetric", drop=True) / norms.sel(
        training="plain", drop=True
    )
    result["norm_ratio"].attrs["long_name"] = "mean gradient norm, asymmetric over plain"
    rows = []
    for name, (norm_word, loss_word) in WORDS.items():
        ratio = float(result["norm_ratio"].sel(architecture=name))
        loss = runs[name]["loss_aux"].sel(training="asymmetric").mean("seed").dropna("step")
        fall = float(loss[-1] / loss[0]) if loss.size else math.nan
        for what, word, value in (
            ("gradient norm with / without", norm_word, ratio),
            ("auxiliary loss last / first", loss_word, fall),
        ):
            verdict = "not comparable"
            if args.scale == "paper" and math.isfinite(value):
                verdict = "agrees" if RULES[word](value) else "disagrees"
            rows.append(Row(f"{LABELS[name]}, {what}", word, value, verdict))
    publish(result, draw(runs), rows, output=args.output, budget=budget)


def draw(runs: dict[str, xr.Dataset]) -> plt.Figure:
    """Losses above, gradient norms below, one column for each architecture; the first seed."""
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), layout="constrained", sharex="col")
    for column, (name, run) in enumerate(runs.items()):
        both = {kind: run.sel(training=kind).isel(seed=0) for kind in KINDS}
        both["plain"] = both["plain"].drop_vars("loss_aux")
        gradients.plot_dynamics(both, axes=axes[:, column])
        axes[0, column].set_title(LABELS[name])
        axes[0, column].set_yscale("log")
        axes[0, column].set_xlabel("")
    return figure


if __name__ == "__main__":
    main()
