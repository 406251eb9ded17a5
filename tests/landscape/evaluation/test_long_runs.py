"""Long grids: killed and resumed, interrupted, spread over executors."""

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn import functional as F

import landscape
from tests.helpers.probe_reference import cross_entropies
from tests.helpers.state import snapshot
from tests.helpers.systems import needs_posix

KILLED = """
    import os, signal, sys
    sys.path[:0] = {paths!r}
    import torch
    import landscape
    from tests.landscape.evaluation.test_long_runs import counted, make

    model, data = make()
    count = 0
    def loss(outputs, targets):
        global count
        count += 1
        if count == {after}:
            os.kill(os.getpid(), signal.SIGKILL)
        return counted(outputs, targets)
    loss.__qualname__ = counted.__qualname__
    landscape.grid(model, data, loss=loss, samples=12, size=7, checkpoint={path!r},
                   method={method!r})
"""

calls = 0


def counted(outputs, targets):
    global calls
    calls += 1
    return F.cross_entropy(outputs, targets, reduction="none")


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    return model, (torch.randn(12, 40).double(), torch.arange(12) % 3)


def kill_half_way(path, after, method="exact"):
    script = textwrap.dedent(KILLED)
    script = script.format(paths=sys.path, after=after, path=str(path), method=method)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


@needs_posix
def test_a_killed_grid_goes_on_where_it_was(tmp_path):
    global calls
    model, data = make()
    kwargs = {"loss": counted, "samples": 12, "size": 7}
    calls = 0
    whole = landscape.grid(model, data, **kwargs)
    uninterrupted = calls
    kill_half_way(tmp_path / "grid", after=30)
    calls = 0
    resumed = landscape.grid(model, data, checkpoint=tmp_path / "grid", **kwargs)
    xr.testing.assert_identical(resumed, whole)
    assert calls <= uninterrupted - 14  # two rows of seven were kept at least
    calls = 0
    xr.testing.assert_identical(
        landscape.grid(model, data, checkpoint=tmp_path / "grid", **kwargs), whole
    )
    assert calls < 10  # finished: only calibration
    assert [p.name for p in tmp_path.iterdir()] == ["grid"]


def test_an_exception_half_way_keeps_finished_points(tmp_path):
    model, data = make()
    before = snapshot(model)
    count = 0

    def failing(outputs, targets):
        nonlocal count
        count += 1
        if count == 20:
            raise KeyboardInterrupt
        return counted(outputs, targets)

    failing.__qualname__ = "counted"
    kwargs = {"samples": 12, "size": 5, "checkpoint": tmp_path / "grid"}
    with pytest.raises(KeyboardInterrupt):
        landscape.grid(model, data, loss=failing, **kwargs)
    assert snapshot(model) == before
    with xr.open_dataset(tmp_path / "grid", engine="h5netcdf") as kept:
        assert 10 <= kept["done"].sum() < 20
    resumed = landscape.grid(model, data, loss=counted, **kwargs)
    kwargs.pop("checkpoint")
    xr.testing.assert_identical(resumed, landscape.grid(model, data, loss=counted, **kwargs))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 1}, "seed"),
        ({"span": 2.0}, "points"),
        ({"normalisation": "layer"}, "normalisation"),
        ({"loss": F.cross_entropy}, "in loss"),
        ({"bn": "recompute"}, "batch_norm"),
        ({"samples": 11}, "data"),
        ({}, "weights"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, change, told):
    model, data = make()
    kwargs = {"samples": 12, "size": 3, "loss": counted, "checkpoint": tmp_path / "grid"}
    landscape.grid(model, data, **kwargs)
    if not change:
        model[0].weight.data[0, 0] += 1e-9
    with pytest.raises(ValueError, match=rf"`checkpoint`: .* other settings or another .*{told}"):
        landscape.grid(model, data, **(kwargs | change))


def test_a_write_that_breaks_off_leaves_the_finished_points_of_before(tmp_path, monkeypatch):
    model, data = make()
    kwargs = {"samples": 12, "size": 5, "checkpoint": tmp_path / "grid"}
    write, count = Path.write_bytes, 0

    def broken(path, content):
        nonlocal count
        count += len(content) > 1  # one byte is the trial of the door
        if count > 3:  # after the empty table and two rows
            write(path, content[: len(content) // 2])
            raise OSError("disk full")
        write(path, content)

    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(OSError, match="disk full"):
        landscape.grid(model, data, **kwargs)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["grid"]
    with xr.open_dataset(tmp_path / "grid", engine="h5netcdf") as kept:
        assert kept["done"].sum() == 10  # two rows of five
    resumed = landscape.grid(model, data, **kwargs)
    kwargs.pop("checkpoint")
    xr.testing.assert_identical(resumed, landscape.grid(model, data, **kwargs))


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "grid").write_text("precious")
    with pytest.raises(ValueError, match="is not one of ours"):
        landscape.grid(*make(), samples=12, size=3, checkpoint=tmp_path / "grid")
    assert (tmp_path / "grid").read_text() == "precious"
    with pytest.raises(ValueError, match="there is no folder"):
        landscape.grid(*make(), samples=12, size=3, checkpoint=tmp_path / "no" / "grid")


def test_a_process_pool_gives_identical_results(tmp_path):
    model, data = make()
    kwargs = {"loss": cross_entropies, "samples": 12, "size": 5}
    expected = landscape.grid(model, data, **kwargs)
    before = snapshot(model)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        spread = landscape.grid(model, data, executor=pool, **kwargs)
        resumable = landscape.grid(
            model, data, executor=pool, checkpoint=tmp_path / "grid", **kwargs
        )
    xr.testing.assert_identical(spread, expected)
    xr.testing.assert_identical(resumable, expected)
    assert snapshot(model) == before


def test_threads_give_identical_results():
    model, data = make()
    kwargs = {"samples": 12, "size": 5}
    with ThreadPoolExecutor(2) as pool:
        spread = landscape.grid(model, data, executor=pool, **kwargs)
    xr.testing.assert_identical(spread, landscape.grid(model, data, **kwargs))


@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_a_dask_cluster_gives_identical_results():
    import distributed

    model, data = make()
    kwargs = {"loss": cross_entropies, "samples": 12, "size": 5}
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        spread = landscape.grid(model, data, executor=client.get_executor(), **kwargs)
    xr.testing.assert_identical(spread, landscape.grid(model, data, **kwargs))


def test_an_executor_that_is_none_is_refused():
    with pytest.raises(TypeError, match="`executor`: expected a concurrent"):
        landscape.grid(*make(), samples=12, size=3, executor=3)


def smoothed(by):
    return lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=by)


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor])
@pytest.mark.parametrize("change", ["loss", "metric", "model"])
def test_a_checkpoint_of_what_has_the_same_name_but_computes_otherwise_is_refused(
    tmp_path, change, executor
):
    # Settings, weights and names are the same: only the values tell.
    model, data = make()
    kwargs = {"samples": 12, "size": 3, "checkpoint": tmp_path / "grid"}
    one, other = ({"loss": smoothed(0.1), "metrics": {"more": smoothed(by)}} for by in (0.1, 0.2))
    landscape.grid(model, data, **kwargs, **one)
    kept = (tmp_path / "grid").read_bytes()
    landscape.grid(model, data, **kwargs, **one)
    if change == "loss":
        one["loss"] = smoothed(0.2)
    elif change == "metric":
        one = other
    else:
        model[2] = nn.Tanh()
    before = snapshot(model)
    kwargs["executor"] = executor(1) if executor else None
    with pytest.raises(ValueError, match="`checkpoint`: was made with another loss, metric or mod"):
        landscape.grid(model, data, **kwargs, **one)
    assert snapshot(model) == before
    assert (tmp_path / "grid").read_bytes() == kept
