"""Figure 8: what is learned, and how much of it carries over."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lab.studies.main_runs import KINDS
from lab.training.scales import LABELS


def draw_learning(runs: Mapping[str, xr.Dataset]) -> Figure:
    """Draw a row for each architecture: accuracy, loss, gap; training dashed; means over seeds."""
    figure, axes = plt.subplots(
        len(runs),
        3,
        figsize=(12, 0.6 + 2.8 * len(runs)),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )

    for (accuracy_ax, loss_ax, gap_ax), (name, run) in zip(axes, runs.items(), strict=True):
        for index, kind in enumerate(KINDS):
            colour = f"C{index}"
            curves = run[["train_accuracy", "test_accuracy", "train_loss", "test_loss"]]
            means = curves.sel(training=kind).mean("seed")

            _draw_pair(means, "accuracy", kind, colour, accuracy_ax)
            _draw_pair(means, "loss", kind, colour, loss_ax)
            gap = means["train_accuracy"] - means["test_accuracy"]
            gap_ax.plot(means["epoch"], gap, color=colour, label=kind)

        gap_ax.set_ylabel("generalisation gap")
        loss_ax.set_title(LABELS[name])

    for ax in axes[-1]:
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    # All panels have the same colours and lines: one legend serves them.
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _draw_pair(means: xr.Dataset, quantity: str, kind: str, colour: str, ax: Axes) -> None:
    style: dict[str, Any] = {"color": colour, "marker": ".", "markersize": 3}
    ax.plot(means["epoch"], means[f"test_{quantity}"], label=f"{kind}, test", **style)
    ax.plot(
        means["epoch"],
        means[f"train_{quantity}"],
        linestyle="--",
        label=f"{kind}, training",
        **style,
    )
    ax.set_ylabel(quantity)
