"""A run that is killed, or stopped by the user, goes on where it was and ends in the same tree."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import resonance
from resonance_toolkit._front.examine.store import Store
from tests.helpers.systems import needs_posix
from tests.resonance_toolkit.front.examine.models import make_mixed, make_sequences

SETTINGS = {"n": 2, "steps": 4, "seeds": 2, "samples": 40, "budget": 3}

# All that a clock measured; everything else must be the same.
_TIMES = ("seconds", "preparation_seconds", "forward_seconds")


def examine(**settings) -> xr.DataTree:
    return resonance.examine(make_mixed(), make_sequences(), **SETTINGS | settings)


def drop_times(tree: xr.DataTree) -> xr.DataTree:
    return tree.map_over_datasets(lambda dataset: dataset.drop_vars(_TIMES, errors="ignore"))


@pytest.fixture(scope="module")
def whole():
    return examine()


# Dies when a piece of the given name has just been kept, on whichever disk that is.
_KILLED = """
import os, signal, sys
from resonance_toolkit._front.examine import budget
from resonance_toolkit._front.examine.store import Store
from tests.resonance_toolkit.front.examine import test_resume
from tests.resonance_toolkit.front.examine.steady_clock import make_steady_clock

budget.read_clock = make_steady_clock()
keep_piece = Store.keep_piece

def keep_and_die(self, name, dataset):
    keep_piece(self, name, dataset)
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return dataset

Store.keep_piece = keep_and_die
test_resume.examine(checkpoint=sys.argv[1])
"""


@needs_posix
def test_killed_amid_a_part_and_amid_training_it_ends_in_the_same_tree(whole, tmp_path):
    path = tmp_path / "run.nc"
    n_pieces = []
    for last_piece in ("landscape", "run of plain 1"):
        command = [sys.executable, "-c", _KILLED, str(path), last_piece]
        process = subprocess.run(command, check=False, capture_output=True)
        assert process.returncode == -signal.SIGKILL, process.stderr.decode()
        n_pieces.append(len(xr.load_dataset(path, engine="h5netcdf").data_vars))
    assert 0 < n_pieces[0] < n_pieces[1]

    resumed = examine(checkpoint=path)
    xr.testing.assert_identical(drop_times(resumed), drop_times(whole))
    assert set(resumed["status"].values) == {"done"}


def test_what_is_finished_is_not_measured_again(tmp_path, monkeypatch):
    path = tmp_path / "run.nc"
    first = examine(checkpoint=path)
    monkeypatch.setattr(Store, "keep_piece", None)
    again = examine(checkpoint=path)
    xr.testing.assert_identical(drop_times(again), drop_times(first))
    np.testing.assert_array_equal(again["seconds"], first["seconds"])


def test_ctrl_c_keeps_what_is_finished_and_a_later_call_goes_on(whole, tmp_path, monkeypatch):
    path = tmp_path / "run.nc"
    keep_piece = Store.keep_piece

    def keep_and_stop(self, name, dataset):
        keep_piece(self, name, dataset)
        if name == "landscape":
            raise KeyboardInterrupt
        return dataset

    with monkeypatch.context() as patch:
        patch.setattr(Store, "keep_piece", keep_and_stop)
        stopped = examine(checkpoint=path)

    status = dict(zip(stopped["part"].values, stopped["status"].values, strict=True))
    assert status["model"] == status["gradients"] == "done"
    assert status["landscape"] == status["curvature"] == status["response"] == "interrupted"
    assert {"model", "gradients", "landscape"} == set(stopped.children)
    reasons = dict(zip(stopped["part"].values, stopped["reason"].values, strict=True))
    assert reasons["landscape"] == "stopped by the user"
    assert reasons["curvature"] == "stopped by the user before it began"
    assert stopped.attrs["verdict"] == "undecided"
    resonance.page(stopped, tmp_path / "page.html")

    xr.testing.assert_identical(drop_times(examine(checkpoint=path)), drop_times(whole))


def test_ctrl_c_amid_training_keeps_the_seeds_that_are_finished(monkeypatch):
    keep_piece = Store.keep_piece

    def keep_and_stop(self, name, dataset):
        keep_piece(self, name, dataset)
        if name == "run of plain 2":
            raise KeyboardInterrupt
        return dataset

    monkeypatch.setattr(Store, "keep_piece", keep_and_stop)
    stopped = examine(parts="response", seeds=4)
    assert stopped["status"].values == ["interrupted"]
    assert stopped["response"]["seed"].values.tolist() == [0, 1]
    assert stopped.attrs["seeds"] == 2
    assert "seeds=2" in stopped["call"].item()
    assert "2 seeds" in stopped.attrs["verdict_sentence"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 0.5}, "alpha"),
        ({"seed": 1}, "seed"),
        ({"held_out": 8}, "held_out_samples"),
        ({"parts": ["model"]}, "parts"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, named):
    path = tmp_path / "run.nc"
    examine(checkpoint=path, parts="attention")
    with pytest.raises(ValueError, match=rf"^`checkpoint`: .*differs in .*{named}.*Delete it"):
        examine(checkpoint=path, **{"parts": "attention"} | change)


def test_a_checkpoint_of_another_model_or_of_other_data_is_refused(tmp_path):
    path = tmp_path / "run.nc"
    examine(checkpoint=path, parts="attention")
    settings = SETTINGS | {"parts": "attention", "checkpoint": path}
    model = make_mixed()
    model.drop = model.norm
    with pytest.raises(ValueError, match="differs in modules"):
        resonance.examine(model, make_sequences(), **settings)
    x, y = make_sequences()
    with pytest.raises(ValueError, match="differs in data"):
        resonance.examine(make_mixed(), (x + 1, y), **settings)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.nc"
    path.write_bytes(b"no netCDF")
    with pytest.raises(ValueError, match=r"^`checkpoint`: .*Delete it or give another path"):
        examine(checkpoint=path)
