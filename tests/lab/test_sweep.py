"""Sweeps: what is kept, what is made again, and what ends without doing harm."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from dataclasses import fields, replace
from pathlib import Path

import distributed
import numpy as np
import pytest
import torch
import xarray as xr

from lab.studies import sweep as module
from lab.studies.executing import executing
from lab.studies.sweep import key_of, sweep
from lab.training.recipe import Recipe
from tests.helpers.systems import needs_posix

ROOT = Path(__file__).parents[2]
TINY = Recipe(per_class=4, test_per_class=2, epochs=2, batch=16)
RECIPES = [replace(TINY, n=n, seed=seed) for n in (0, 2) for seed in (42, 43)]


@pytest.fixture(autouse=True)
def _one_thread():
    """As the workers have: sums in another order differ in the last digit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def trained(monkeypatch):
    """What was really trained."""
    trained_recipes = []

    def counted(recipe, **settings):
        trained_recipes.append(recipe)
        return train(recipe, **settings)

    train = module.train
    monkeypatch.setattr(module, "train", counted)
    return trained_recipes


def test_finished_runs_are_not_repeated(tmp_path, trained):
    first = sweep([*RECIPES, RECIPES[0]], cache=tmp_path)
    assert trained == RECIPES
    second = sweep(RECIPES, cache=tmp_path)
    assert trained == RECIPES
    for a, b in zip(first, second, strict=False):
        xr.testing.assert_identical(a, b)
    xr.testing.assert_identical(first[4], first[0])


def test_keys_follow_recipe_and_data_not_the_path(tmp_path):
    x, y = np.zeros((20, 4, 4), np.uint8), np.arange(20) % 2
    x[:] = np.arange(20)[:, None, None]
    paths = [tmp_path / name for name in ("a.npz", "b.npz", "c.npz")]
    for path in paths[:2]:
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)

    np.savez(paths[2], x_train=x, y_train=1 - y, x_test=x, y_test=y)
    same, moved, other = (key_of(replace(TINY, data=str(path))) for path in paths)
    assert same == moved != other
    assert len({key_of(recipe) for recipe in RECIPES}) == 4


# Of each field of a recipe, a value that is not its default; of `data`, see the test.
OTHER = {
    "backbone": "cnn",
    "data": "other.npz",
    "image": 16,
    "per_class": 3,
    "test_per_class": 3,
    "held_out": 0.1,
    "label_noise": 0.1,
    "seed": 43,
    "n": 1,
    "alpha": 0.5,
    "strength": "linear",
    "layers": "blocks.0",
    "loss": "ce",
    "init": "default",
    "active": "all",
    "connected": False,
    "static_labels": False,
    "epochs": 5,
    "batch": 8,
    "optimizer": "sgd",
    "lr": 0.01,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "milestones": (1,),
    "warm_up": 1.0,
    "min_lr": 1e-5,
    "label_smoothing": 0.1,
    "augment": True,
    "clip": 1.0,
    "zero_head": True,
    "trace_every": 1,
    "attention_epochs": (1,),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_keys_follow_every_setting(name, tmp_path):
    value = OTHER[name]
    if name == "data":
        value = str(tmp_path / value)
        x, y = np.zeros((4, 4, 4), np.uint8), np.arange(4) % 2
        x[1:] = 9
        np.savez(value, x_train=x, y_train=y, x_test=x, y_test=y)

    assert value != getattr(Recipe(), name)
    assert key_of(replace(Recipe(), **{name: value})) != key_of(Recipe())
    assert key_of(replace(Recipe(), **{name: getattr(Recipe(), name)})) == key_of(Recipe())


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path, trained, monkeypatch):
    def interrupted(recipe, **settings):
        if len(trained) == 2:
            raise KeyboardInterrupt
        return counted(recipe, **settings)

    counted = module.train
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sweep(RECIPES, cache=tmp_path)

    sweep(RECIPES, cache=tmp_path)
    assert trained == RECIPES


@needs_posix
def test_a_killed_sweep_repeats_no_finished_run(tmp_path):
    script = [sys.executable, str(ROOT / "tests" / "lab" / "sweep_killed.py"), str(tmp_path)]
    paths = os.pathsep.join([str(ROOT / "examples"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    victim = subprocess.run(script, env=environment, timeout=900)
    assert victim.returncode == -signal.SIGKILL

    finished = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.nc")}
    assert 0 < len(finished) < len(RECIPES)

    runs = sweep(RECIPES, cache=tmp_path)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.nc")}
    assert finished.items() <= after.items()

    fresh = sweep(RECIPES, cache=tmp_path / "elsewhere")
    for a, b in zip(runs, fresh, strict=True):
        xr.testing.assert_identical(a, b)


@pytest.mark.parametrize("damage", [b"", b"not netCDF", "half"])
def test_a_damaged_entry_is_made_again(tmp_path, trained, damage):
    (whole,) = sweep(RECIPES[:1], cache=tmp_path)
    path = tmp_path / f"{key_of(RECIPES[0])}.nc"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "half" else damage)
    with pytest.warns(UserWarning, match="in the cache is damaged, run again"):
        (again,) = sweep(RECIPES[:1], cache=tmp_path)

    xr.testing.assert_identical(whole, again)
    assert len(trained) == 2
    assert path.read_bytes()[:4] == content[:4]


def test_a_full_disk_leaves_no_entry(tmp_path, monkeypatch):
    def full(self, data):
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        sweep(RECIPES[:1], cache=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_divergence_does_not_end_a_sweep(tmp_path):
    wild = replace(TINY, optimizer="sgd", lr=1e30)
    runs = sweep([wild, TINY], cache=tmp_path)
    assert [run["diverged"].item() for run in runs] == [1, 0]


@needs_posix
def test_dask_finishes_though_a_worker_is_killed(tmp_path):
    recipes = [replace(recipe, epochs=40) for recipe in RECIPES]
    expected = sweep(recipes, cache=tmp_path / "here")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        assert len(pids) == 2

        killer = threading.Thread(target=_kill_when_busy, args=(tmp_path / "dask", pids))
        killer.start()
        with executing(Namespace(processes=None, dask=cluster.scheduler_address)) as executor:
            found = sweep(recipes, cache=tmp_path / "dask", executor=executor)

        killer.join()
        assert set(client.run(os.getpid).values()) != set(pids.values())

    for a, b in zip(expected, found, strict=True):
        xr.testing.assert_identical(a, b)


def _kill_when_busy(cache, pids):
    """Kill a worker as soon as one run is finished, so that others are under way."""
    while not list(cache.glob("*.nc")):
        time.sleep(0.02)
    os.kill(min(pids.values()), signal.SIGKILL)


def test_processes_give_the_same(tmp_path):
    expected = sweep(RECIPES[:2], cache=tmp_path / "here")
    cores = os.cpu_count()  # so many processes have one thread each; only those needed are started
    with executing(Namespace(processes=cores, dask=None)) as executor:
        found = sweep(RECIPES[:2], cache=tmp_path / "there", executor=executor)
    for a, b in zip(expected, found, strict=True):
        xr.testing.assert_identical(a, b)
