"""What the searches for alpha found, beside the strengths that the paper's searches chose."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from lab.results.publish import Row
from lab.studies.alpha_search import COARSE, GRID, METHODS, fine
from lab.training.scales import FIRST_SEED, counted

TABLE_22 = (0.01, 0.056, 0.316, 1.778, 10.0)
TABLE_23 = (0.100, 0.133, 0.178, 0.237, 0.316, 0.422, 0.562, 0.750, 1.000)


def stage_rows() -> list[Row]:
    """The candidates of both stages of the search on ImageNet."""
    rows = []
    for title, published, here, table in (
        ("candidates of stage 1", TABLE_22, COARSE, "table 22"),
        ("candidates around 0.316", TABLE_23, fine(10**-0.5), "tables 22, 23"),
    ):
        same = len(published) == len(here) and np.allclose(here, published, atol=5e-4)
        ends = f"{published[0]:g} ... {published[-1]:g}"
        verdict = "agrees" if same else "disagrees"
        rows.append(Row(title, ends, ends if same else str(here.round(3)), verdict, table))
    return rows


def rows_of(
    label: str, n: int, found: xr.Dataset, published: Sequence[float], scale: str
) -> list[Row]:
    """The strengths, published and here; then what every method reaches, and its cost.

    Args:
        label: The backbone's name.
        n: Branches at each layer.
        found: What `lab.studies.alpha_search.compare_searches` gives.
        published: One strength for all seeds, which a grid found; or one for each seed from 42
            on, found in two stages; or none.
        scale: A strength is judged at "paper": it agrees within a step of the (coarse) grid.
    """
    name = f"{label}, {n} x"
    alpha = found["alpha"]
    if len(published) > 1:
        rows = []
        for seed, number in enumerate(published, start=FIRST_SEED):
            if seed in found["seed"]:
                here = float(alpha.sel({"search": "two stages", "seed": seed}))
                title = f"{name}, seed {seed}, alpha of two stages"
                rows.append(_judged(title, number, here, COARSE, scale, "found for this seed"))
    else:
        here = float(alpha.sel({"search": "grid"}).median())
        number = published[0] if published else None
        title = f"{name}, alpha of the grid"
        rows = [_judged(title, number, here, GRID, scale, "median over seeds")]
    for method in METHODS:
        accuracy = float(found["accuracy"].sel({"search": method}).mean())
        runs = counted(int(found["n_runs"].sel({"search": method})), "run")
        rows.append(Row(f"{name}, accuracy by {method} / %", None, accuracy, note=runs))
    return rows


def _judged(
    title: str, published: float | None, here: float, candidates: np.ndarray, scale: str, note: str
) -> Row:
    if published is None or scale != "paper":
        return Row(title, published, here, note=note)
    step = np.log(candidates[1] / candidates[0])
    # The published strengths are rounded to four digits.
    agrees = abs(np.log(here / published)) <= step + 0.02
    note += f"; tolerance: a factor of {np.exp(step):.3g}, one step of the grid"
    return Row(title, published, here, "agrees" if agrees else "disagrees", note)
