"""Figure 8: what is learned, and how much of it carries over."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lab.studies.main_runs import KINDS
from lab.training.scales import LABELS


def draw_learning(runs: Mapping[str, xr.Dataset]) -> Figure:
    """A row for each architecture: accuracy, loss, gap; training dashed; means over seeds."""
    figure, axes = plt.subplots(3, 3, figsize=(12, 9), layout="constrained", sharex=True)
    for line, (name, run) in zip(axes, runs.items(), strict=True):
        for colour, kind in enumerate(KINDS):
            mean = run[["train_accuracy", "test_accuracy", "train_loss", "test_loss"]]
            mean = mean.sel(training=kind).mean("seed")
            for ax, what in zip(line, ("accuracy", "loss"), strict=False):
                style = {"color": f"C{colour}", "marker": ".", "markersize": 3}
                ax.plot(mean["epoch"], mean[f"test_{what}"], label=f"{kind}, test", **style)
                dashed = style | {"linestyle": "--", "label": f"{kind}, training"}
                ax.plot(mean["epoch"], mean[f"train_{what}"], **dashed)
                ax.set_ylabel(what)
            gap = mean["train_accuracy"] - mean["test_accuracy"]
            line[2].plot(mean["epoch"], gap, color=f"C{colour}", label=kind)
        line[2].set_ylabel("generalisation gap")
        line[1].set_title(LABELS[name])
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=4)
    return figure
