"""What the searches for alpha found, beside the strengths that the paper's searches chose."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from lab.results.verdicts import Row, join_notes, judge
from lab.studies.alpha_search import COARSE, GRID, METHODS, fine_candidates
from lab.training.scales import FIRST_SEED, plural

TABLE_22 = (0.01, 0.056, 0.316, 1.778, 10.0)
TABLE_23 = (0.100, 0.133, 0.178, 0.237, 0.316, 0.422, 0.562, 0.750, 1.000)

# The published strengths are rounded to four decimals, which is up to 2 % of the smallest.
_ROUNDING = 0.02


def stage_rows() -> list[Row]:
    """Compare the candidates of both stages of the search on ImageNet."""
    return [
        _candidates_row("candidates of stage 1", TABLE_22, COARSE, "table 22"),
        _candidates_row(
            "candidates around 0.316", TABLE_23, fine_candidates(10**-0.5), "tables 22, 23"
        ),
    ]


def rows_of(
    label: str, n: int, searches: xr.Dataset, published: Sequence[float], scale: str
) -> list[Row]:
    """Compare the strengths, published and here; then what every method reaches, and its cost.

    Args:
        label: The backbone's name.
        n: Branches at each layer.
        searches: What `lab.studies.alpha_search.compare_searches` gives.
        published: One strength for all seeds, which a grid found; or one for each seed from 42
            on, found in two stages; or none.
        scale: A strength is judged at "paper": it agrees within a step of the (coarse) grid.
    """
    name = f"{label}, {n} x"
    if len(published) > 1:
        rows = _rows_by_seed(name, searches, published, scale)
    else:
        grid_alpha = float(searches["alpha"].sel({"search": "grid"}).median())
        row = Row(
            f"{name}, alpha of the grid",
            published[0] if published else None,
            grid_alpha,
            note="median over seeds",
        )
        rows = [_judge_strength(row, GRID, scale)]

    for method in METHODS:
        accuracy = float(searches["accuracy"].sel({"search": method}).mean())
        runs = plural(int(searches["n_runs"].sel({"search": method})), "run")
        rows.append(Row(f"{name}, accuracy by {method} / %", None, accuracy, note=runs))
    return rows


def _rows_by_seed(
    name: str, searches: xr.Dataset, published: Sequence[float], scale: str
) -> list[Row]:
    rows = []
    for seed, published_alpha in enumerate(published, start=FIRST_SEED):
        if seed not in searches["seed"]:
            continue

        alpha = float(searches["alpha"].sel({"search": "two stages", "seed": seed}))
        title = f"{name}, seed {seed}, alpha of two stages"
        row = Row(title, published_alpha, alpha, note="found for this seed")
        rows.append(_judge_strength(row, COARSE, scale))
    return rows


def _candidates_row(
    title: str, published: Sequence[float], candidates: np.ndarray, table: str
) -> Row:
    agrees = len(published) == len(candidates) and np.allclose(candidates, published, atol=5e-4)
    published_ends = f"{published[0]:g} ... {published[-1]:g}"
    here = published_ends if agrees else str(candidates.round(3))
    return Row(title, published_ends, here, judge(agrees), table)


def _judge_strength(row: Row, candidates: np.ndarray, scale: str) -> Row:
    """Give a strength its verdict: it agrees within one step of the candidates."""
    if row.published is None or scale != "paper":
        return row

    step = np.log(candidates[1] / candidates[0])
    distance = abs(np.log(row.here / row.published))
    bound = f"tolerance: a factor of {np.exp(step):.3g}, one step of the grid"
    verdict = judge(distance <= step + _ROUNDING)
    return Row(row.quantity, row.published, row.here, verdict, join_notes(row.note, bound))
