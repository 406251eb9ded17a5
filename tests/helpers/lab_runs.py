"""Options and runs of the laboratory that are made up, so that the answer is known."""

from argparse import Namespace

import xarray as xr

ARGS = Namespace(
    scale="smoke",
    data=None,
    seeds=None,
    cache=None,
    processes=None,
    dask=None,
    show_recipe=False,
)


def accuracy_of(recipe):
    """Anything that tells recipes apart."""
    is_cnn = recipe.backbone == "cnn"
    return (recipe.seed % 40 + 10 * recipe.n + recipe.alpha + 100 * is_cnn) / 1e3


def make_up_runs(recipes, **_):
    """Stand in for `lab.studies.sweep.sweep`."""
    return [
        xr.Dataset({"test_accuracy": ("epoch", [0.0, accuracy_of(recipe)])}) for recipe in recipes
    ]
