import matplotlib.pyplot as plt
import table5_gradient_conflict
import xarray as xr


def test_the_example_prints_published_values_beside_ours(tmp_path, capsys):
    output = tmp_path / "table5.nc"
    table5_gradient_conflict.main(["--output", str(output), "--epochs", "1", "--samples", "64"])
    printed = capsys.readouterr().out
    assert "-0.2574" in printed
    with xr.open_dataset(output) as saved:
        assert list(saved["architecture"].values) == ["mlp", "cnn", "vit6"]
        assert f"{saved['cosine_total'].values[1, -1]:.4f}" in printed
    assert output.with_suffix(".png").exists()
    assert output.with_suffix(".layers.png").exists()
    plt.close("all")
