"""The file of finished points: shared by processes, refused when it is of other work."""

import subprocess
import sys
import textwrap
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import landscape
from landscape._evaluation.checkpoint import Checkpoint
from tests.helpers.systems import needs_proc

POINTS = np.arange(12.0).reshape(6, 2)

SHARED = """
    import sys
    sys.path[:0] = {paths!r}
    import xarray as xr
    import landscape
    import landscape._evaluation.points as points
    from tests.landscape.evaluation.test_checkpoint import make

    points._SAVE_EVERY = 0.0  # after every point, so that many writes meet
    print("ready", flush=True)
    sys.stdin.readline()
    surface = landscape.grid(*make(), samples=6, size=7, checkpoint={path!r})
    surface.to_netcdf({path!r} + sys.argv[1], engine="h5netcdf")
"""


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    return model, (torch.randn(6, 4).double(), torch.arange(6) % 3)


def make_checkpoint(path, *, settings=None):
    return Checkpoint(path, settings or {"seed": 0}, POINTS, ["loss"], 2)


def finish(checkpoint, *indices):
    for index in indices:
        checkpoint.table[index] = index
        checkpoint.is_done[index] = True
    checkpoint.save()


def run_two(path):
    """Let two processes fill in one checkpoint at once; give their results."""
    script = textwrap.dedent(SHARED).format(paths=sys.path, path=str(path))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n", worker.stderr.read()
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=1800)
        assert worker.returncode == 0, errors
    return [xr.load_dataset(f"{path}{name}", engine="h5netcdf") for name in ("a", "b")]


@pytest.mark.parametrize("trial", range(2))
def test_two_processes_share_a_checkpoint(tmp_path, trial):
    expected = landscape.grid(*make(), samples=6, size=7)
    for surface in run_two(tmp_path / "plane.nc"):
        xr.testing.assert_identical(surface, expected)

    with xr.open_dataset(tmp_path / "plane.nc", engine="h5netcdf") as kept:
        assert kept["done"].all()
        np.testing.assert_array_equal(kept["table"][:, 0], expected["loss"].values.ravel())
    assert not list(tmp_path.glob(".*"))


def test_the_file_keeps_what_either_has_finished(tmp_path):
    first, second = (make_checkpoint(tmp_path / "plane.nc") for _ in range(2))
    finish(first, 0, 1)
    finish(second, 1, 4)
    finish(first, 2)
    assert second.is_done.tolist() == [False, True, False, False, True, False]  # its own work

    again = make_checkpoint(tmp_path / "plane.nc")
    assert again.is_done.tolist() == [True, True, True, False, True, False]
    np.testing.assert_array_equal(again.table[:, 1], [0, 1, 2, np.nan, 4, np.nan])


def test_xarray_opens_it(tmp_path):
    finish(make_checkpoint(tmp_path / "plane.nc"), 3)
    with xr.open_dataset(tmp_path / "plane.nc", engine="h5netcdf") as kept:
        assert kept["done"].values.tolist() == [0, 0, 0, 1, 0, 0]
        np.testing.assert_array_equal(kept["alpha"], POINTS[:, 0])
        np.testing.assert_array_equal(kept["beta"], POINTS[:, 1])
        assert kept.attrs["values"] == "loss"


def test_a_file_in_which_nothing_is_finished_may_be_taken(tmp_path):
    path = tmp_path / "plane.nc"
    make_checkpoint(path)
    other = make_checkpoint(path, settings={"seed": 1})
    finish(other, 0)
    with pytest.raises(ValueError, match="other settings or another model; it differs in seed"):
        make_checkpoint(path)


def test_other_work_in_the_same_file_is_left_alone(tmp_path):
    path = tmp_path / "plane.nc"
    first, other = make_checkpoint(path), make_checkpoint(path, settings={"seed": 1})
    finish(other, 0)
    with pytest.warns(UserWarning, match="differs in seed.*From here on, .* are not saved"):
        finish(first, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish(first, 2)  # told once
    assert make_checkpoint(path, settings={"seed": 1}).is_done.tolist()[:2] == [True, False]


def test_a_file_that_is_damaged_meanwhile_is_replaced(tmp_path):
    path = tmp_path / "plane.nc"
    checkpoint = make_checkpoint(path)
    finish(checkpoint, 0)
    path.write_bytes(path.read_bytes()[:-50])
    finish(checkpoint, 1)
    assert make_checkpoint(path).is_done.tolist()[:3] == [True, True, False]


@pytest.mark.parametrize("cut", [8, 100, -1])
def test_a_damaged_file_is_called_damaged(tmp_path, cut):
    path = tmp_path / "plane.nc"
    finish(make_checkpoint(path), 0)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"`checkpoint`: '.*plane.nc' is damaged: .* Delete it or"):
        make_checkpoint(path)


def test_a_large_file_of_other_work_is_refused_unread(tmp_path):
    path = tmp_path / "plane.nc"
    points = np.zeros((20_000, 2))
    large = Checkpoint(path, {"seed": 0}, points, ["loss"], 1000)
    large.is_done[0] = True
    large.save()
    del large

    assert path.stat().st_size > 160e6

    # Arrays of numpy, into which HDF5 reads, are among what is traced.
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="it differs in seed"):
            Checkpoint(path, {"seed": 1}, points, ["loss"], 10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40e6


@needs_proc
def test_a_place_that_takes_no_file_is_refused_before_any_work(tmp_path):
    n_calls = 0

    def loss(outputs, targets):
        nonlocal n_calls
        n_calls += 1
        return nn.functional.cross_entropy(outputs, targets)

    model, data = make()
    with pytest.raises(OSError, match=r"`checkpoint`: cannot write '/proc/plane.nc'"):
        landscape.grid(model, data, loss=loss, size=3, checkpoint=Path("/proc/plane.nc"))
    with pytest.raises(ValueError, match="`checkpoint`: expected a file, got the folder"):
        landscape.grid(model, data, loss=loss, size=3, checkpoint=tmp_path)
    assert n_calls == 0


if __name__ == "__main__":
    import tempfile

    alone = landscape.grid(*make(), samples=6, size=7)
    n_equal = 0
    for _ in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as folder:
            n_equal += all(
                surface.identical(alone) for surface in run_two(Path(folder, "plane.nc"))
            )
    print(f"{n_equal} of {sys.argv[1]}: both processes ended with the surface of one alone")
