"""Do the auxiliary and the main loss pull an architecture the same way? (tables 5, 28; figure 3)

    python examples/table5_gradient_conflict.py [--scale cpu] [--data cifar10.npz]

The cosine between the gradients of the main and of the auxiliary loss, over the parameters that
both reach, along the training of MLP, CNN and ViT-6L with 20 branches at each layer.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import xarray as xr

import gradients
from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import Row, compare, join_notes, judge, printed_as
from lab.studies.main_runs import main_runs, obstacles_by_backbone, trace_of
from lab.training.scales import LABELS, SMALL

READING = "20 branches and CIFAR-100 are our reading: the paper says neither"
STATISTICS = ("final", "mean", "min", "max")
PUBLISHED = {  # the four statistics, and the verdict
    "mlp": (-0.0309, -0.0801, -0.3422, 0.0701, "incoherent"),
    "cnn": (-0.1926, -0.2574, -0.8210, 0.0464, "conflict"),
    "vit6": (0.2631, 0.1870, -0.1845, 0.3654, "synergy"),
}


def main(argv: list[str] | None = None) -> None:
    """Train with 20 branches (or read the runs); print the table, save and draw."""
    parser = arguments(__doc__, output="results/table5.nc")
    parser.add_argument("--architectures", nargs="+", choices=SMALL, default=list(SMALL))
    args = parser.parse_args(argv)
    runs, budget = main_runs(args, args.architectures)

    # Architectures have other layers, so that only what is summed over them can be joined.
    traces = {name: trace_of(run) for name, run in runs.items()}
    totals = [trace.drop_dims("layer") for trace in traces.values()]
    label = xr.Variable("architecture", list(traces), {"long_name": "backbone"})
    result = xr.concat(totals, label, combine_attrs="drop_conflicts", join="outer")

    summary = summarise_each(traces)
    means = summary[list(STATISTICS)].mean("seed", keep_attrs=True)
    rows = rows_of(summary, obstacles_by_backbone(args, args.architectures))
    layered = traces.get("vit6", traces[args.architectures[-1]])
    layers = gradients.plot_layers(first_seed(layered)).figure
    figures = {"": draw(traces), "layers": layers}
    publish(result.merge(means), figures, rows, output=args.output, budget=budget)


def summarise_each(traces: dict[str, xr.Dataset]) -> xr.Dataset:
    """Summarise each architecture by itself: they may differ in steps."""
    label = xr.Variable("architecture", list(traces), {"long_name": "backbone"})
    summaries = [gradients.summarise(trace) for trace in traces.values()]
    return xr.concat(summaries, label, combine_attrs="drop_conflicts")


def rows_of(summary: xr.Dataset, obstacles: Mapping[str, Sequence[str]]) -> list[Row]:
    """Compare the statistics, and what they are taken to say.

    Args:
        summary: From `summarise_each`.
        obstacles: By architecture, what keeps its numbers from being compared.
    """
    rows = []
    for name in summary["architecture"].values.tolist():
        *numbers, published_verdict = PUBLISHED[name]
        part = summary.sel(architecture=name)
        for statistic, number in zip(STATISTICS, numbers, strict=True):
            quantity = f"{LABELS[name]}, {statistic} cosine"
            values = part[statistic].values
            paper = printed_as(f"{number:.4f}")
            row = compare(quantity, paper, values, obstacles=obstacles[name], note=READING)
            rows.append(row)

        rows.append(_interaction_row(name, published_verdict, part, obstacles[name]))
    return rows


def _interaction_row(name: str, published: str, part: xr.Dataset, obstacles: Sequence[str]) -> Row:
    """Compare the word for the interaction: a verdict needs all seeds to have the same."""
    words = list(dict.fromkeys(part["verdict"].values.tolist()))
    is_comparable = not obstacles and len(words) == 1
    verdict = judge(words == [published], comparable=is_comparable)
    note = join_notes(*obstacles, "" if len(words) == 1 else "differs over seeds", READING)
    return Row(f"{LABELS[name]}, interaction", published, " / ".join(words), verdict, note)


def first_seed(trace: xr.Dataset) -> xr.Dataset:
    """Return the trace of the first seed."""
    return trace.isel(seed=0, drop=True)


def draw(traces: dict[str, xr.Dataset]) -> plt.Figure:
    """Draw the cosine along training, a panel for each architecture, with the published mean."""
    size = (1.6 + 3.8 * len(traces), 3.8)
    figure, grid = plt.subplots(
        1, len(traces), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    axes = grid[0]
    for ax, (name, trace) in zip(axes, traces.items(), strict=True):
        gradients.plot_trace(first_seed(trace), smooth=9, ax=ax, label="seed 42, smoothed")
        ax.axhline(PUBLISHED[name][1], color="C1", linestyle="--", label="published mean")
        ax.set_title(LABELS[name])
        ax.label_outer()

    axes[-1].legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
