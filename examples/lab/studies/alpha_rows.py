"""What the searches for alpha found, beside the strengths that the paper's searches chose."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from lab.results.verdicts import Published, Row, compare, judge
from lab.studies.alpha_search import COARSE, GRID, METHODS, fine_candidates
from lab.training.scales import plural

TABLE_22 = (0.01, 0.056, 0.316, 1.778, 10.0)
TABLE_23 = (0.100, 0.133, 0.178, 0.237, 0.316, 0.422, 0.562, 0.750, 1.000)


def stage_rows() -> list[Row]:
    """Compare the candidates of both stages of the search on ImageNet."""
    return [
        _candidates_row("candidates of stage 1", TABLE_22, COARSE, "table 22"),
        _candidates_row(
            "candidates around 0.316", TABLE_23, fine_candidates(10**-0.5), "tables 22, 23"
        ),
    ]


def rows_of(
    label: str,
    n: int,
    searches: xr.Dataset,
    published: Sequence[float],
    obstacles: Sequence[str],
) -> list[Row]:
    """Compare the strengths, published and here; then what every method reaches, and its cost.

    Args:
        label: The backbone's name.
        n: Branches at each layer.
        searches: What `lab.studies.alpha_search.compare_searches` gives.
        published: One strength for all seeds, which a grid found; or one for each seed from 42
            on, found in two stages; or none.
        obstacles: What keeps the strengths from being compared.
    """
    name = f"{label}, {n} x"
    alphas = searches["alpha"].sel({"search": "two stages" if len(published) > 1 else "grid"})

    rows = []
    if published:
        row = compare(
            f"{name}, log10 of alpha",
            _published_logarithm(published),
            np.log10(alphas).values,
            obstacles=obstacles,
            note=_describe_strengths(alphas, published),
        )
        rows.append(row)

    for method in METHODS:
        accuracy = float(searches["accuracy"].sel({"search": method}).mean())
        runs = plural(int(searches["n_runs"].sel({"search": method})), "run")
        rows.append(Row(f"{name}, accuracy by {method} / %", None, accuracy, note=runs))
    return rows


def _published_logarithm(published: Sequence[float]) -> Published:
    """Return the logarithm of the strength, with its deviation over the paper's seeds.

    One strength for all seeds was found on a grid, which tells it to within half a step.
    """
    logarithms = np.log10(published)
    if len(published) > 1:
        deviation = float(np.std(logarithms, ddof=1))
    else:
        deviation = float(np.log10(GRID[1] / GRID[0])) / 2
    return Published(round(float(logarithms.mean()), 3), round(deviation, 3))


def _describe_strengths(alphas: xr.DataArray, published: Sequence[float]) -> str:
    ours, paper = (", ".join(f"{value:.4g}" for value in values) for values in (alphas, published))
    return f"alpha by seed {ours}; published {paper}"


def _candidates_row(
    title: str, published: Sequence[float], candidates: np.ndarray, table: str
) -> Row:
    agrees = len(published) == len(candidates) and np.allclose(candidates, published, atol=5e-4)
    published_ends = f"{published[0]:g} ... {published[-1]:g}"
    ours = published_ends if agrees else str(candidates.round(3))
    return Row(title, published_ends, ours, judge(agrees), table)
