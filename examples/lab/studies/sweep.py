"""Many runs: each recipe once, here or on an executor, finished ones kept on disk."""

import argparse
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
import xarray as xr
from accelerate import Accelerator

from lab.data.images import load
from lab.results import netcdf
from lab.results.files import read_dataset
from lab.results.publish import write_atomically
from lab.training.recipe import Recipe
from lab.training.train import train
from resonance_toolkit import spread

CACHE_VERSION = 2  # raise it when the same recipe comes to mean something else


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
    # Under `accelerate launch` all look before any writes.
    accelerator = Accelerator()  # not PartialState, which does not know of a launch on CPUs
    accelerator.wait_for_everyone()
    keys = [key_of(recipe) for recipe in recipes]
    unique = dict(zip(keys, recipes, strict=True))
    kept = {key: read_dataset(cache / f"{key}.nc", having="diverged") for key in unique}
    done = {key: entry for key, entry in kept.items() if entry is not None}
    todo = [key for key in unique if key not in done]
    accelerator.wait_for_everyone()
    work = partial(_work, cache=cache)
    items = [(key, unique[key]) for key in todo]
    for index, run in spread(work, items, executor=executor, label="runs", unit="run"):
        done[todo[index]] = run
        if accelerator.is_main_process:
            path = cache / f"{todo[index]}.nc"
            write_atomically({path: netcdf.writer(run)})
            (cache / f"{todo[index]}.pt").unlink(missing_ok=True)
    return [done[key] for key in keys]


def key_of(recipe: Recipe) -> str:
    """What a run is kept under: where the data lie does not matter, what they are does.

    Settings at their defaults are left out: a new one does not make old runs worthless.
    """
    usual = asdict(Recipe())
    settings = {name: value for name, value in asdict(recipe).items() if value != usual[name]}
    settings |= {"data": load(recipe.data).fingerprint, "version": CACHE_VERSION}
    if (precision := Accelerator().mixed_precision) != "no":
        settings["mixed_precision"] = precision  # what `accelerate launch` was told
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


@contextmanager
def executing(args: argparse.Namespace) -> Iterator[Executor | None]:
    """The executor that `--processes` or `--dask` ask for; None works in this process.

    Dask's workers need the toolkit, this folder on their PYTHONPATH, one thread each, and the data
    under the same name.
    """
    if args.processes:
        threads = max((os.cpu_count() or 1) // args.processes, 1)
        with ProcessPoolExecutor(
            args.processes, get_context("spawn"), torch.set_num_threads, (threads,)
        ) as pool:
            yield pool
    elif args.dask:
        from distributed import Client

        with Client(args.dask) as client, client.get_executor(pure=False) as executor:
            yield executor
    else:
        yield None


def _work(item: tuple[str, Recipe], *, cache: Path) -> xr.Dataset:
    key, recipe = item
    return train(recipe, checkpoint=cache / f"{key}.pt")
