"""Many runs: each recipe once, here or on an executor, finished ones kept on disk."""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import xarray as xr
from accelerate import Accelerator

from lab.data.images import load
from lab.results.files import cache_writer, check_writable, read_dataset, write_atomically
from lab.training.recipe import Recipe
from lab.training.train import train
from resonance_toolkit import spread

CACHE_VERSION = 3  # raise it when the same recipe comes to mean something else
REVISED = {"cnn": "one dropout"}  # in place of the version, where one network alone has changed


def sweep(
    recipes: Sequence[Recipe], *, cache: Path, executor: Executor | None = None
) -> list[xr.Dataset]:
    """Train by each recipe, unless a run of it is in the cache.

    A run enters the cache as soon as it is finished, so whatever ends a sweep, the next one goes
    on from there. An entry that cannot be read is made again, with a warning.

    Args:
        recipes: What to run; repeated recipes are run once.
        cache: A folder; entries are named by a hash of recipe and data.
        executor: As for `resonance.spread`.

    Returns:
        One Dataset for each recipe, in order.
    """
    accelerator = Accelerator()  # not PartialState, which does not know of a launch on CPUs

    # Under `accelerate launch` all processes look into the cache before any writes to it: they must
    # agree on what is left to do.
    accelerator.wait_for_everyone()
    keys = [key_of(recipe) for recipe in recipes]
    recipe_by_key = dict(zip(keys, recipes, strict=True))
    entries = {key: read_dataset(cache / f"{key}.nc", required="diverged") for key in recipe_by_key}
    accelerator.wait_for_everyone()

    runs = {key: entry for key, entry in entries.items() if entry is not None}
    missing_runs = [(key, recipe) for key, recipe in recipe_by_key.items() if key not in runs]
    if missing_runs:
        check_writable(cache / f"{missing_runs[0][0]}.nc")

    work = partial(_train_item, cache=cache)
    for index, run in spread(work, missing_runs, executor=executor, label="runs", unit="run"):
        key, _ = missing_runs[index]
        runs[key] = run

        if accelerator.is_main_process:
            write_atomically({cache / f"{key}.nc": cache_writer(run)})

            # The checkpoint of a run that is finished serves nobody.
            (cache / f"{key}.pt").unlink(missing_ok=True)

    return [runs[key] for key in keys]


def key_of(recipe: Recipe) -> str:
    """Return what a run is kept under: where the data lie does not matter, what they are does.

    Settings at their defaults are left out: a new one does not make old runs worthless.
    """
    defaults = asdict(Recipe())
    settings = {name: value for name, value in asdict(recipe).items() if value != defaults[name]}
    settings |= {"data": load(recipe.data).fingerprint, "version": CACHE_VERSION}

    # Networks that have come to mean something else, the others staying what they are.
    if recipe.backbone in REVISED:
        settings["revision"] = REVISED[recipe.backbone]

    # What `accelerate launch` was told.
    if (precision := Accelerator().mixed_precision) != "no":
        settings["mixed_precision"] = precision

    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _train_item(item: tuple[str, Recipe], *, cache: Path) -> xr.Dataset:
    key, recipe = item
    return train(recipe, checkpoint=cache / f"{key}.pt")
