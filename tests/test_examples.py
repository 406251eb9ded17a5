"""Every example runs, tiny, and leaves its result and its figure."""

import runpy
from pathlib import Path

import matplotlib as mpl
import pytest
import xarray as xr

mpl.use("agg")
EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {
    "credit_audit.py": ["--seeds", "1", "--methods", "SB+pen", "CB+pen", "DFA+pen", "frozen"],
    "early_exit.py": ["--seeds", "2", "--epochs", "1"],
    "figure5_landscape.py": ["--size", "5", "--samples", "40"],
    "figure6_attention.py": ["--epochs", "2", "--images", "16", "--branches", "2"],
    "quickstart.py": ["--epochs", "2", "--n", "3"],
    "table5_gradient_conflict.py": ["--epochs", "1", "--samples", "64"],
}


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(TINY)


@pytest.mark.parametrize("name", list(TINY))
def test_example_runs(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where finished runs are kept
    output = tmp_path / "nested" / "result.nc"
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    main([*TINY[name], "--output", str(output)])
    assert "wrote" in capsys.readouterr().out
    assert output.with_suffix(".png").stat().st_size > 10_000
    with xr.open_dataset(output, engine="h5netcdf") as result:
        assert result.data_vars


def test_quickstart_learns_and_records_every_branch(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"]
    main(["--epochs", "6", "--n", "3", "--output", str(tmp_path / "q.nc")])
    with xr.open_dataset(tmp_path / "q.nc", engine="h5netcdf") as result:
        assert dict(result.sizes) == {"kind": 2, "epoch": 6, "layer": 4, "branch": 3}
        assert float(result["accuracy"].isel(epoch=-1).min()) > 0.25  # chance is 0.1
        branch_loss = result["branch_loss"].sel(kind="with branches")
        assert bool(branch_loss.notnull().all())
        active, static = (branch_loss.isel(epoch=-1, branch=i).mean() for i in (-1, 0))
        assert active < static


def test_missing_data_is_said(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "quickstart.py"))["main"]
    with pytest.raises(FileNotFoundError, match=r"expected an \.npz with x_train"):
        main(["--data", str(tmp_path / "nothing.npz")])
