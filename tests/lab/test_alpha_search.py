"""The searches for alpha, with runs that are made up."""

import numpy as np
import xarray as xr

from lab.studies.alpha_search import (
    COARSE,
    GRID,
    compare_searches,
    fine_candidates,
    search_line,
    search_rate_and_decay,
)
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


def _accuracies(score):
    """Stand in for training: the last accuracy is whatever the score says of the recipe."""
    asked = []

    def run(recipes):
        asked.extend(recipes)
        return [xr.Dataset({"test_accuracy": ("epoch", [0.9, score(r)])}) for r in recipes]

    return asked, run


def test_the_line_is_searched_on_held_out_images():
    asked, run = _accuracies(lambda recipe: 1 - abs(recipe.alpha - 35) / 100 if recipe.n else 0.99)
    alpha, words = search_line(Recipe(n=1, test_per_class=5), run)
    assert alpha == 35.0  # without branches there is nothing to choose, however good
    assert "0: 99.00" in words
    assert [recipe.alpha for recipe in asked if recipe.n] == [5.0 * i for i in range(1, 11)]
    assert {(recipe.held_out, recipe.test_per_class) for recipe in asked} == {(0.1, None)}


def test_the_rate_is_searched_first_and_then_the_decay():
    asked, run = _accuracies(lambda r: (r.lr == 3e-4) / 2 + (r.weight_decay == 1e-2) / 4)
    assert search_rate_and_decay(Recipe(n=20), run) == (3e-4, 1e-2)
    assert [recipe.lr for recipe in asked[:5]] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    assert {recipe.weight_decay for recipe in asked[:5]} == {1e-4}
    assert {recipe.lr for recipe in asked[5:]} == {3e-4}
    assert {(recipe.n, recipe.epochs, recipe.held_out) for recipe in asked} == {(0, 150, 0.1)}
