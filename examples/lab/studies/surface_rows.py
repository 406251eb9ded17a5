"""Tables 4, 7 and 8 of the asymmetric-training paper, and their numbers beside ours."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from lab.data.identity import NAMES, identify
from lab.data.images import load
from lab.results.verdicts import Published, Row, compare, join_notes, judge, printed_as
from lab.studies.surfaces import (
    BRANCHES,
    CLASSES,
    PAPER_IMAGE,
    PAPER_SAMPLES,
    PAPER_SIZE,
    STATISTICS,
    PlaneBudget,
)
from lab.training.recipe import Recipe
from lab.training.scales import LABELS

# Table 7 (MLP) and table 8, as printed, by number of branches: millions of parameters, then
# Std(Loss), Range(Loss) and Mean(Grad).
VALUES = {
    "mlp": {
        0: ("0.28", "0.0032", "0.0152", "0.0002"),
        1: ("0.29", "0.0015", "0.0064", "0.0001"),
        20: ("0.40", "0.0011", "0.0053", "0.0001"),
        300: ("2.01", "0.0003", "0.0015", "0.0000"),
    },
    "cnn": {
        0: ("2.43", "0.0008", "0.0040", "0.0001"),
        1: ("2.51", "0.0007", "0.0033", "0.0000"),
        20: ("4.09", "0.0003", "0.0013", "0.0000"),
        300: ("27.4", "0.0001", "0.0004", "0.0000"),
    },
    "vit6": {
        0: ("1.22", "0.0045", "0.0212", "0.0003"),
        1: ("1.29", "0.0043", "0.0204", "0.0003"),
        20: ("2.75", "0.0028", "0.0132", "0.0002"),
        300: ("24.3", "0.0009", "0.0044", "0.0001"),
    },
}
# The same tables: changes of the three statistics in percent.
CHANGES = {
    "mlp": {1: (-52.3, -57.6, -49.8), 20: (-64.4, -64.9, -65.0), 300: (-90.2, -90.3, -90.4)},
    "cnn": {1: (-16.3, -17.3, -15.9), 20: (-66.7, -68.0, -66.9), 300: (-90.2, -90.3, -90.2)},
    "vit6": {1: (-3.7, -3.7, -3.6), 20: (-37.7, -38.0, -37.1), 300: (-80.1, -79.3, -77.6)},
}
# Table 4: change of the "initial gradient norm" in percent, its deviation over five seeds, and p.
REDUCTIONS = {
    "mlp": {
        1: Published(-29.86, 20.35, "0.0305"),
        20: Published(-65.38, 1.95, "< 0.001"),
        300: Published(-90.40, 0.72, "< 0.001"),
    },
    "cnn": {
        1: Published(-16.64, 4.79, "0.0015"),
        20: Published(-67.22, 5.52, "< 0.001"),
        300: Published(-90.18, 2.38, "< 0.001"),
    },
    "vit6": {
        1: Published(-3.40, 0.47, "< 0.001"),
        20: Published(-33.68, 3.62, "< 0.001"),
        300: Published(-68.78, 8.85, "< 0.001"),
    },
}


def obstacles_of(recipe: Recipe, budget: PlaneBudget) -> list[str]:
    """Say what keeps planes from being compared with the paper's: other data, or fewer points."""
    images = load(recipe.data)
    paper_classes = CLASSES[recipe.backbone]
    data, paper_data = identify(images), NAMES[f"cifar{paper_classes}"]

    obstacles = []
    if data != paper_data:
        obstacles.append(f"{data}, not {paper_data}")
    if images.classes != paper_classes and images.image == PAPER_IMAGE:
        obstacles.append(f"labels of {paper_classes} classes made from {images.classes}")

    paper_budget = PlaneBudget(PAPER_SIZE, PAPER_SAMPLES)
    if budget != paper_budget:
        obstacles.append(f"{budget}, not {paper_budget}")
    return obstacles


def surface_rows(recipe: Recipe, result: xr.Dataset, obstacles: Sequence[str]) -> list[Row]:
    """Compare everything that tables 7 and 8 say of one backbone.

    Args:
        recipe: Of the backbone.
        result: From `lab.studies.surfaces.statistics_of`, of one scaling.
        obstacles: From `obstacles_of`; parameters are counted in spite of them.
    """
    name = recipe.backbone
    is_same_network = load(recipe.data).image == PAPER_IMAGE

    rows = []
    for n in (0, *BRANCHES):
        label = f"{LABELS[name]}, {n} x" if n else f"{LABELS[name]}, plain"
        result_for_n = result.sel(n=n)
        params, *values = VALUES[name][n]
        rows.append(_parameter_row(label, params, result_for_n, is_same_network))

        for statistic, published in zip(STATISTICS, values, strict=True):
            quantity = f"{label}, {STATISTICS[statistic]}"
            numbers = result_for_n["value"].sel(statistic=statistic).values
            note = describe_spread(numbers)
            paper = printed_as(published)
            rows.append(compare(quantity, paper, numbers, obstacles=obstacles, note=note))

        if n:
            dilution = f"dilution alone: {float(result_for_n['reduction']):.1f} %"
            for statistic, change in zip(STATISTICS, CHANGES[name][n], strict=True):
                quantity = f"{label}, change of {STATISTICS[statistic]} / %"
                numbers = result_for_n["change"].sel(statistic=statistic).values
                note = join_notes(dilution, describe_spread(numbers))
                paper = printed_as(f"{change:.1f}")
                rows.append(compare(quantity, paper, numbers, obstacles=obstacles, note=note))
    return rows


def describe_spread(values: np.ndarray) -> str:
    """Say how single planes scatter: the paper shows one, without a deviation.

    Examples:
        >>> describe_spread(np.array([1.0, 2.0, 3.0]))
        'single planes scatter by +- 1'
    """
    if len(values) < 2:
        return ""
    return f"single planes scatter by +- {values.std(ddof=1):.2g}"


def _parameter_row(
    label: str, printed: str, result_for_n: xr.Dataset, is_same_network: bool
) -> Row:
    # As many digits as are printed. They are counted on the network, whatever it is evaluated on;
    # only smaller images make it another one.
    digits = len(printed.partition(".")[2])
    millions = float(result_for_n["n_parameters"]) / 1e6
    agrees = round(millions, digits) == float(printed)

    verdict = judge(agrees, comparable=is_same_network)
    note = "counted" if is_same_network else "a network for images of another size"
    quantity = f"{label}, parameters / M"
    return Row(quantity, float(printed), millions, verdict, note, printed=printed)
