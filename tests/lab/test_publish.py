"""Results are written whole or not at all, and printed."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import xarray as xr

from lab.results.publish import print_table, publish
from lab.results.verdicts import Row
from tests.helpers.systems import needs_posix

ROOT = Path(__file__).parents[2]

ROWS = [Row("gain", 9.2, float("nan"), note="diverged"), Row("sign", "+", "-", "disagrees")]


@pytest.fixture
def figure():
    drawn, _ = plt.subplots()
    yield drawn
    plt.close(drawn)


def test_everything_is_written_and_printed(tmp_path, figure, capsys):
    output = tmp_path / "new" / "table.nc"
    result = xr.Dataset({"a": ((), 1.0)})
    publish(result, {"": figure, "more": figure}, ROWS, output=output, budget="2 epochs")
    names = {path.name for path in output.parent.iterdir()}
    drawn = {f"table{more}.{kind}" for more in ("", ".more") for kind in ("png", "pdf")}
    assert names == {"table.nc", "table.json", *drawn}

    with xr.open_dataset(output, engine="h5netcdf") as saved:
        assert saved.attrs["budget"] == "2 epochs"
        assert saved["a"].item() == 1.0

    record = json.loads(output.with_suffix(".json").read_text())
    assert record["rows"][0]["here"] is None  # strict JSON has no NaN
    assert record["figures"] == ["table.png", "table.more.png"]

    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "budget: 2 epochs"
    assert [cell.strip() for cell in printed[1].split("|")][1:] == ["published", "here", "verdict"]
    assert [cell.strip() for cell in printed[2].split("|")][:3] == ["gain", "9.2", "-"]
    assert printed[-1].startswith("wrote ")


def test_what_many_rows_say_is_printed_once(capsys):
    reason = "3 epochs of digits, not 200 of CIFAR-10"
    print_table([Row(f"row {i}", 1.0, 2.0, note=f"{reason}; {i} seeds") for i in range(5)], "none")
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["budget: none", f"a: {reason}"]
    assert printed[-1].endswith("| not comparable (a; 4 seeds)")


def test_only_the_first_process_writes(tmp_path, figure, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    publish(xr.Dataset(), figure, ROWS, output=tmp_path / "table.nc", budget="none")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stage", ["write_bytes", "savefig"])
def test_a_full_disk_leaves_the_old_result(tmp_path, figure, monkeypatch, stage):
    output = tmp_path / "table.nc"
    publish(xr.Dataset({"a": ((), 1.0)}), figure, ROWS, output=output, budget="old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self, path, *_, **__):
        with (self if stage == "write_bytes" else path).open("wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path if stage == "write_bytes" else type(figure), stage, full)
    with pytest.raises(OSError, match="No space left"):
        publish(xr.Dataset({"a": ((), 2.0)}), figure, ROWS, output=output, budget="new")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@needs_posix
def test_a_full_disk_does_not_take_the_process_down(tmp_path):
    """Files may be no longer than a part of the Dataset; HDF5 by itself ends in a signal."""
    script = f"""
import gc, pathlib, resource, signal
import numpy as np, xarray as xr
from lab.results.files import dataset_writer

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
result = xr.Dataset({{name: ("x", np.arange(3000.0)) for name in "ab"}})
try:
    dataset_writer(result)(pathlib.Path({str(tmp_path / "a.nc")!r}))
except OSError as error:
    print(error)
gc.collect()
print("alive")
"""
    paths = os.pathsep.join([str(ROOT / "examples"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert "alive" in done.stdout
