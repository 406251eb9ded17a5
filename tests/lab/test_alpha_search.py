"""The searches for alpha, with runs that are made up."""

import numpy as np
import xarray as xr

from lab.studies.alpha_search import COARSE, GRID, compare_searches, fine_candidates
from lab.training.recipe import Recipe


def test_searches_find_the_best_alpha():
    """Held-out accuracy peaks at 0.5 for seed 42, at 30 for seed 43, and alpha = 10 diverges."""
    asked = []

    def run(recipes):
        asked.extend(recipes)
        runs = []
        for recipe in recipes:
            peak = {42: 0.5, 43: 30.0}[recipe.seed]
            value = 0.9 - 0.1 * abs(np.log(recipe.alpha / peak))
            value = np.nan if recipe.alpha == 10.0 else value
            runs.append(xr.Dataset({"test_accuracy": ("epoch", [value])}))

        return runs

    found = compare_searches(Recipe(n=20), [42, 43], run)
    np.testing.assert_allclose(found["alpha"].sel({"search": "grid"}), [GRID[2], GRID[7]])

    best = [
        fine_candidates(0.316227766),
        fine_candidates(COARSE[3]),
    ]  # at 10 the second seed's coarse run diverges
    nearest = [a[np.argmin(abs(np.log(a / p)))] for a, p in zip(best, (0.5, 30.0), strict=True)]
    np.testing.assert_allclose(found["alpha"].sel({"search": "two stages"}), nearest)

    searching, final = asked[:-8], asked[-8:]
    assert {recipe.held_out for recipe in searching} == {0.1}
    assert len(searching) == 2 * (10 + 5 + 9)
    assert {recipe.held_out for recipe in final} == {0.0}
    assert [recipe.strength for recipe in final[4:]] == ["balance"] * 2 + ["gate"] * 2
    assert found["n_runs"].values.tolist() == [11, 15, 1, 1]
