"""The example of figure 5, tiny: branches change nothing on the backbone alone."""

import matplotlib as mpl
import numpy as np
import xarray as xr

mpl.use("Agg")

import figure5_landscape as example


def test_figure_5_runs_and_shows_dilution(tmp_path, capsys):
    output = tmp_path / "figure5.nc"
    example.main(["--size", "5", "--samples", "40", "--output", str(output)])
    assert "published" in capsys.readouterr().out
    with xr.open_dataset(output, engine="h5netcdf") as found:
        alone = found["std"].sel(covers="backbone").values
        np.testing.assert_array_equal(alone, alone[0])
        # Near the initialisation the surface is smooth: its statistics shrink like the length.
        change = found["change"].sel(statistic="range") + 1
        np.testing.assert_allclose(change, found["factor"], rtol=0.1)
    assert output.with_suffix(".png").stat().st_size > 10_000
    assert output.with_suffix(".html").read_text().startswith("<!doctype html>")
