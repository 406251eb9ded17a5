"""Tables 4, 7 and 8 of the asymmetric-training paper, and their numbers beside ours."""

from collections.abc import Sequence

import numpy as np
import scipy.stats
import xarray as xr

from lab.results.verdicts import Criterion, Row, compare, join_notes, judge
from lab.studies.surfaces import BRANCHES, PAPER_SAMPLES, PAPER_SIZE, STATISTICS, PlaneBudget
from lab.training.scales import LABELS, plural

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
        1: (-29.86, 20.35, "0.0305"),
        20: (-65.38, 1.95, "< 0.001"),
        300: (-90.40, 0.72, "< 0.001"),
    },
    "cnn": {
        1: (-16.64, 4.79, "0.0015"),
        20: (-67.22, 5.52, "< 0.001"),
        300: (-90.18, 2.38, "< 0.001"),
    },
    "vit6": {
        1: (-3.40, 0.47, "< 0.001"),
        20: (-33.68, 3.62, "< 0.001"),
        300: (-68.78, 8.85, "< 0.001"),
    },
}


def obstacles_of(classes: int, image: int, paper_classes: int, budget: PlaneBudget) -> list[str]:
    """Say what keeps planes from being compared with the paper's: other data, or fewer points."""
    obstacles = []
    if image != 32:
        obstacles.append(f"images of {image} x {image}, not 32 x 32")
    if classes != paper_classes:
        obstacles.append(f"{classes} classes brought to the paper's {paper_classes} at random")
    if (budget.size, budget.samples) != (PAPER_SIZE, PAPER_SAMPLES):
        paper = PlaneBudget(PAPER_SIZE, PAPER_SAMPLES)
        obstacles.append(f"{budget}, not {paper}")
    return obstacles


def surface_rows(name: str, result: xr.Dataset, obstacles: Sequence[str]) -> list[Row]:
    """Compare everything that tables 7 and 8 say of one backbone.

    Args:
        name: The backbone.
        result: From `lab.studies.surfaces.statistics_of`, of one scaling.
        obstacles: From `obstacles_of`; parameters are counted in spite of them.
    """
    rows = []
    for n in (0, *BRANCHES):
        label = f"{LABELS[name]}, {n} x" if n else f"{LABELS[name]}, plain"
        here = result.sel(n=n)
        params, *values = VALUES[name][n]
        rows.append(_parameter_row(label, params, here, obstacles))

        for statistic, published in zip(STATISTICS, values, strict=True):
            quantity = f"{label}, {STATISTICS[statistic]}"
            numbers = here["value"].sel(statistic=statistic).values
            rows.append(compare_seeds(quantity, float(published), numbers, obstacles=obstacles))

        if n:
            note = f"dilution alone: {float(here['reduction']):.1f} %"
            for statistic, change in zip(STATISTICS, CHANGES[name][n], strict=True):
                quantity = f"{label}, change of {STATISTICS[statistic]} / %"
                numbers = here["change"].sel(statistic=statistic).values
                row = compare_seeds(quantity, change, numbers, obstacles=obstacles, note=note)
                rows.append(row)
    return rows


def compare_seeds(
    quantity: str,
    published: float,
    values: Sequence[float],
    *,
    deviation: float = 0.0,
    obstacles: Sequence[str] = (),
    note: str = "",
) -> Row:
    """Compare the interval of our mean over seeds with a published number.

    Args:
        quantity: What was measured.
        published: The paper's number.
        values: Ours, by seed.
        deviation: What the paper prints behind +-.
        obstacles: What keeps them from being compared.
        note: Further words.
    """
    numbers = np.asarray(values, dtype=float)
    mean, count = float(numbers.mean()), len(numbers)
    if count < 2:
        words = join_notes(*obstacles, "one seed has no interval", note)
        return Row(quantity, published, mean, note=words)

    spread = float(numbers.std(ddof=1))
    half_width = float(scipy.stats.t.ppf(0.975, count - 1)) * spread / count**0.5
    interval = f"{mean - half_width:.4g} to {mean + half_width:.4g}"
    words = f"+- {spread:.2g} over {plural(count, 'seed')}, 95 % interval of the mean {interval}"
    criterion = Criterion(
        tolerance=half_width + deviation,
        origin="our interval" + (" and the published +-" if deviation else ""),
        budget_free=not obstacles,
    )
    note = join_notes(*obstacles, words, note)
    return compare(quantity, published, mean, scale="smoke", criterion=criterion, note=note)


def _parameter_row(label: str, printed: str, here: xr.Dataset, obstacles: Sequence[str]) -> Row:
    # As many digits as are printed. The count is that of the network, whatever was evaluated on it;
    # but smaller images make a smaller network.
    digits = len(printed.partition(".")[2])
    millions = float(here["n_parameters"]) / 1e6
    agrees = round(millions, digits) == float(printed)

    is_smaller = any(obstacle.startswith("images") for obstacle in obstacles)
    note = obstacles[0] if is_smaller else ""
    verdict = judge(agrees, comparable=not is_smaller)
    return Row(f"{label}, parameters / M", float(printed), millions, verdict, note)
