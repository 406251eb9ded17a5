"""The example of figure 5, tiny: branches change nothing on the backbone alone."""

import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr

mpl.use("Agg")

import figure5_landscape as example

from lab.data.images import Images
from lab.training.recipe import Recipe


def test_figure_5_runs_and_shows_dilution(tmp_path, capsys):
    output = tmp_path / "figure5.nc"
    example.main(["--size", "5", "--samples", "40", "--output", str(output)])
    printed = capsys.readouterr().out
    with xr.open_dataset(output, engine="h5netcdf") as found:
        assert found["architecture"].values.tolist() == ["MLP", "CNN", "ViT-6L"]

        alone = found["std"].sel(covers="backbone").transpose("n", ...).values
        np.testing.assert_array_equal(alone, np.broadcast_to(alone[0], alone.shape))

        # Near the initialisation the surface is smooth: its statistics shrink like the length,
        # or, where it is curved (the transformer's), at most like its square.
        change, factor = found["change"].sel(statistic="range") + 1, found["factor"]
        assert bool((change > 0.9 * factor**2).all())
        assert bool((change < 1.1 * factor).all())

        flat = {"architecture": ["MLP", "CNN"]}
        np.testing.assert_allclose(change.sel(flat), factor.sel(flat), rtol=0.1)

        for name, rows in zip(
            found["architecture"].values, example.PUBLISHED.values(), strict=True
        ):
            for n, (published, *_) in zip(example.BRANCHES, rows, strict=True):
                here = 100 * float(found["change"].sel(architecture=name, n=n, statistic="std"))
                label = f"{name}, {n} x, change of Std(Loss) / %"
                line = next(line for line in printed.splitlines() if line.startswith(label))
                cells = [cell.strip() for cell in line.split("|")]
                assert cells[1:3] == [f"{published:.4g}", f"{here:.4g}"]

    assert output.with_suffix(".png").stat().st_size > 10_000
    assert output.with_suffix(".html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("classes", "alike"), [(10, {"MLP"}), (100, {"CNN", "ViT-6L"})])
def test_a_verdict_needs_the_classes_of_the_paper(classes, alike, tmp_path, monkeypatch):
    """Tables 7 and 8 have a network of 10 and two of 100 classes: wider heads dilute more."""
    images = Images(
        torch.zeros(1, 3, 32, 32), torch.tensor([classes - 1]), *[torch.tensor([0])] * 2
    )
    part = xr.Dataset({"factor": ("n", np.ones(3))}, {"n": list(example.BRANCHES)})
    part["change"] = (("n", "statistic"), np.full((3, 3), -0.7))
    part["statistic"] = list(example.STATISTICS)
    surfaces = {"plain": None}
    found = []
    monkeypatch.setattr(example, "measure_surfaces", lambda *_, **__: (part, surfaces))
    monkeypatch.setattr(example.landscape, "plot_surfaces", lambda *_, **__: None)
    monkeypatch.setattr(example.landscape, "html_surface", lambda _: "")
    monkeypatch.setattr(Recipe, "images", lambda _: images)
    monkeypatch.setattr(example, "publish", lambda _, __, rows, **___: found.extend(rows))
    example.main(["--output", str(tmp_path / "figure5.nc")])
    assert len(found) == 27
    assert {row.verdict for row in found} == {"not comparable"}  # one seed has no interval
    assert alike == {row.quantity.split(",")[0] for row in found if "other images" not in row.note}
