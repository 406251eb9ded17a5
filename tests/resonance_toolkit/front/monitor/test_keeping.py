"""What a monitor has measured outlives the process, and a training that resumes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import resonance
from resonance_toolkit import Monitor, read_monitor
from resonance_toolkit._front.monitor.record import Record
from tests.helpers.systems import needs_posix
from tests.resonance_toolkit.front.monitor.training import (
    Run,
    assert_same_bits,
    make_batch,
    make_model,
)

ROOT = Path(__file__).parents[4]


def monitored(run, **settings):
    return Monitor(run.model, probe=run.probe, **{"every": 2, "data": make_batch(9), **settings})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tree of all four parts, and the file that was written along."""
    path = tmp_path_factory.mktemp("monitor") / "monitor.jsonl"
    run = Run()
    monitor = monitored(run, sharpness_every=2, path=path)
    run.train(3, monitor.backward)
    return monitor.tree(), path


def test_the_tree_describes_itself(trained):
    tree, _ = trained
    assert tree.attrs["made_by"] == "resonance.Monitor"
    assert {"toolkit_version", "torch_version", "model", "every"} <= tree.attrs.keys()
    assert list(tree.children) == ["gradients", "branches", "attention", "sharpness"]
    for node in tree.children.values():
        dataset = node.to_dataset()
        assert dataset.attrs["made_by"] == "resonance.Monitor"
        for dim in dataset.dims:
            assert dim in dataset.coords, f"dimension {dim} has no coordinate"
        for name, variable in dataset.variables.items():
            assert variable.attrs.get("long_name"), name
            assert variable.dtype.kind != "f" or variable.dtype == np.float64
        for key, value in dataset.attrs.items():
            assert type(value) in (str, int, float), key


def test_the_tree_survives_netcdf(trained, tmp_path):
    tree, _ = trained
    tree.to_netcdf(tmp_path / "monitor.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "monitor.nc", engine="h5netcdf") as again:
        xr.testing.assert_identical(again.load(), tree)


def test_the_file_is_the_tree(trained):
    tree, path = trained
    xr.testing.assert_identical(read_monitor(path), tree)


def test_a_torn_line_is_left_out(trained, tmp_path):
    tree, path = trained
    whole = path.read_bytes()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(whole[:-20])
    again = read_monitor(torn)
    assert again["sharpness"]["step"].values.tolist() == [0]
    xr.testing.assert_identical(again["attention"], tree["attention"])

    lines = whole.splitlines(keepends=True)
    for end in (0, 10, len(lines[0]) - 1):
        torn.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="expected a record that Monitor"):
            read_monitor(torn)


def test_no_flipped_bit_is_taken_for_data(trained, tmp_path):
    _, path = trained
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.jsonl"
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(whole), 60):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(generator.integers(0, 7))
        damaged.write_bytes(bytes(changed))
        try:
            read = read_monitor(damaged)
        except (ValueError, UnicodeDecodeError):
            continue
        # A line that ends too late or too early is torn: what is read is a beginning.
        for part, node in read.children.items():
            n_steps = node.sizes["step"]
            xr.testing.assert_identical(
                node.to_dataset(), trained[0][part].to_dataset().isel(step=slice(n_steps))
            )


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.txt").write_text("not a record\n")
    with pytest.raises(ValueError, match="`path`: expected a record that Monitor"):
        read_monitor(tmp_path / "other.txt")


@needs_posix
def test_a_kill_loses_no_row(tmp_path):
    path = tmp_path / "monitor.jsonl"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    worker = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("killed.py")), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    try:
        while int(worker.stdout.readline()) < 4:
            pass
        worker.send_signal(signal.SIGKILL)
    finally:
        worker.kill()
        rest = worker.communicate()[0]

    n_rows = int(["4", *rest.split()][-1])
    tree = read_monitor(path)
    expected = Run()
    monitor = monitored(expected, every=1)
    expected.train(n_rows, monitor.backward)
    for part, node in monitor.tree().children.items():
        # It may have come further than it could tell.
        assert tree[part].sizes["step"] >= n_rows
        found = tree[part].to_dataset().isel(step=slice(n_rows))
        xr.testing.assert_identical(found, node.to_dataset())


def test_a_resumed_training_is_as_one_that_never_stopped(tmp_path):
    whole = Run()
    uninterrupted = monitored(whole, sharpness_every=3)
    whole.train(6, uninterrupted.backward)

    path = tmp_path / "monitor.jsonl"
    first = Run()
    before = monitored(first, sharpness_every=3, path=path)
    first.train(3, before.backward)
    checkpoint = {
        "model": first.model.state_dict(),
        "probe": first.probe.state_dict(),
        "optimizer": first.optimizer.state_dict(),
        "monitor": before.state_dict(),
    }
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    first.train(2, before.backward, first=3)  # lost: the checkpoint is older
    before.close()

    second = Run()
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    after = monitored(second, sharpness_every=3, path=path)
    for name, owner in (("model", second.model), ("probe", second.probe)):
        owner.load_state_dict(state[name])
    second.optimizer.load_state_dict(state["optimizer"])
    after.load_state_dict(state["monitor"])
    assert after.step == 3
    second.train(3, after.backward, first=3)

    assert_same_bits(second.state(), whole.state())
    xr.testing.assert_identical(after.tree(), uninterrupted.tree())
    xr.testing.assert_identical(read_monitor(path), uninterrupted.tree())


def test_a_file_of_another_run_is_not_written_over(tmp_path):
    path = tmp_path / "monitor.jsonl"
    path.write_text("mine\n")
    run = Run()
    monitor = monitored(run, path=path)
    with pytest.raises(ValueError, match="holds a record already; give another path, or resume"):
        run.train(1, monitor.backward)
    assert path.read_text() == "mine\n"


def test_a_full_disk_stops_nothing_and_is_made_up_for(tmp_path, monkeypatch):
    path = tmp_path / "monitor.jsonl"
    run = Run()
    monitor = monitored(run, path=path)
    run.train(1, monitor.backward)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(monitor._file, "add", full)
        patch.setattr(monitor._file, "replace", full)
        with pytest.warns(UserWarning, match="could not be written.*No space left") as warned:
            run.train(2, monitor.backward, first=1)
    assert len(warned) == 1

    run.train(2, monitor.backward, first=3)
    assert monitor.tree().attrs["path_reason"].startswith("step 3: OSError")
    xr.testing.assert_identical(read_monitor(path), monitor.tree())


@pytest.mark.parametrize("state", [{}, {"record": 3, "trace": {}}, {"record": "{}\n", "trace": {}}])
def test_the_state_of_something_else_is_refused(state):
    monitor = Monitor(make_model())
    with pytest.raises(ValueError, match="`state`: expected that of a Monitor"):
        monitor.load_state_dict(state)


def test_the_state_of_other_layers_is_refused():
    state = Monitor(make_model(), layers="blocks.0").state_dict()
    with pytest.raises(ValueError, match="expected the layers of this trace"):
        Monitor(make_model(), layers="blocks.1").load_state_dict(state)


def test_rows_of_another_layout_are_told_apart():
    """A model may lose a layer while it trains; what is not there is NaN."""
    record = Record()
    for step, layers in enumerate((["a", "b"], ["a"])):
        values = {"loss": ("layer", np.arange(1.0, 1 + len(layers)), {"long_name": "loss"})}
        record.add("branches", step, xr.Dataset(values, {"layer": layers}))
    loss = record.to_tree({})["branches"]["loss"]
    np.testing.assert_array_equal(loss.sel(layer="a"), [1.0, 1.0])
    np.testing.assert_array_equal(loss.sel(layer="b"), [2.0, np.nan])

    again = Record()
    again.read([line.encode() for line in record.lines({})])
    xr.testing.assert_identical(again.to_tree({}), record.to_tree({}))


def test_a_page_shows_it(trained, tmp_path):
    tree, _ = trained
    page = resonance.page(tree, tmp_path / "monitor.html").read_text(encoding="utf-8")
    assert "<h1>resonance.Monitor</h1>" in page
    for caption in ("cosine of the two gradients", "branches at each layer", "attention is spread"):
        assert caption in page
    assert page.count("<svg") >= 4


def test_a_page_says_what_is_missing(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    monitor = Monitor(model, layers="1", every=1, data=torch.randn(5, 4))
    monitor.backward(model(torch.randn(5, 4)).sum())
    page = resonance.page(monitor.tree(), tmp_path / "monitor.html")
    assert "no attention was seen" in page.read_text(encoding="utf-8")
