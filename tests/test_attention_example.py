"""The attention example runs, tiny."""

import figure6_attention
import xarray as xr


def test_figure6_prints_published_values_beside_ours(tmp_path, capsys):
    output = tmp_path / "figure6.nc"
    figure6_attention.main(
        ["--epochs", "3", "--images", "16", "--branches", "2", "--output", str(output)]
    )
    with xr.open_dataset(output, engine="h5netcdf") as result:
        assert result["entropy"].sizes["step"] == 3
        assert result["training"].values.tolist() == ["plain", "asymmetric"]
    assert output.with_suffix(".png").is_file()
    assert output.with_suffix(".statistics.png").is_file()
    printed = capsys.readouterr().out
    assert "(0.092)" in printed
    assert len(printed.splitlines()) == 10
