"""`show`: text and a drawing of any saved result."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import landscape
from tests.resonance_toolkit.front.command.conftest import small_tree


@pytest.fixture
def surface(tmp_path):
    model = nn.Linear(3, 2)
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    result = landscape.grid(model, (x, y), size=3)
    result.to_netcdf(tmp_path / "surface.nc", engine="h5netcdf")
    return result


def test_a_dataset_is_told_and_goes_on_a_page_beside_it(run, stand_in, surface, tmp_path):
    code, out, err = run("show", tmp_path / "surface.nc")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("landscape.grid of Linear, toolkit 0.1")

    (row,) = (line.split() for line in lines if line.startswith("loss "))
    assert row[1:7] == ["alpha", "3", "x", "beta", "3", f"{float(surface['loss'].min()):.4g}"]
    assert row[7] == f"{float(surface['loss'].max()):.4g}"
    assert lines[-1] == f"page: {tmp_path}/surface.html"
    assert stand_in.shown.identical(surface)


def test_a_tree_of_examine_gives_its_verdict_and_its_parts(run, stand_in, tmp_path):
    tree = small_tree()
    tree.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    code, out, err = run("show", tmp_path / "result.nc")
    assert code == 0, err
    assert "undecided: too few seeds" in out
    assert ["attention", "refused", "no", "attention", "in", "it"] in [
        line.split() for line in out.splitlines()
    ]
    assert stand_in.shown.identical(tree)


def test_several_results_go_side_by_side_under_names_that_differ(run, stand_in, tmp_path):
    for seed in (0, 1):
        (tmp_path / f"seed{seed}").mkdir()
        small_tree().to_netcdf(tmp_path / f"seed{seed}" / "result.nc", engine="h5netcdf")
    paths = [tmp_path / f"seed{seed}" / "result.nc" for seed in (0, 1)]
    code, _, err = run("show", *paths, "--output", tmp_path / "both.html")
    assert code == 0, err
    assert list(stand_in.shown) == ["seed0/result", "seed1/result"]
    assert (tmp_path / "both.html").is_file()


def test_any_other_tree_is_listed_node_by_node(run, tmp_path):
    dataset = xr.Dataset({"loss": ("step", [1.0, np.nan, 3.0])}, attrs={"made_by": "x.y"})
    tree = xr.DataTree.from_dict({"/first": dataset, "/second": dataset})
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    out = run("show", tmp_path / "tree.nc")[1]
    assert "/first" in out
    assert out.count("loss      step 3  1     3") == 2


def test_what_cannot_be_shown_gives_a_sentence(refused, surface, tmp_path):
    result = tmp_path / "surface.nc"
    assert refused("show", "none.nc") == "RESULT: no file none.nc"
    assert "expected .html" in refused("show", result, "--output", "a.doc")
    assert "several results need a page" in refused("show", result, result, "--output", "a.png")
    told = refused("show", result, "--output", "none/a.html")
    assert told.startswith("--output: cannot write 'none/a.html'")  # and no number of an errno

    (tmp_path / "torn.nc").write_bytes(result.read_bytes()[:300])
    assert "torn.nc is not a saved result" in refused("show", tmp_path / "torn.nc")
    (tmp_path / "text.nc").write_text("no result", encoding="utf-8")
    assert "text.nc is not a result; expected what" in refused("show", tmp_path / "text.nc")
    told = refused("show", tmp_path)
    assert told.endswith(f"is a folder; expected a file, such as {tmp_path / 'result.nc'}")
