"""The examples of figure 5 and table 4, tiny: planes shrink as dilution by tensors has them."""

import json
import re

import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr

mpl.use("Agg")

import figure5_landscape as example
import table4_initial_norm as table4

from lab.data.images import Images
from lab.data.samples import relabel
from lab.studies import surface_rows
from lab.studies.plane_options import plane_budget
from lab.studies.surfaces import PlaneBudget, _measure, statistics_of
from lab.training.recipe import Recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Both scripts on one cache; the planes of the second are those of the first."""
    folder = tmp_path_factory.mktemp("planes")
    options = ["--size", "3", "--samples", "20", "--seeds", "2", "--cache", str(folder / "cache")]
    example.main([*options, "--scaling", "tensor", "unit", "--output", str(folder / "figure5.nc")])
    written = sorted((folder / "cache").iterdir())

    table4.main([*options, "--output", str(folder / "table4.nc")])
    assert sorted((folder / "cache").iterdir()) == written
    return folder


def test_figure_5_shrinks_by_tensors_and_by_parameters(run):
    with xr.open_dataset(run / "figure5.nc", engine="h5netcdf") as found:
        assert found["architecture"].values.tolist() == ["mlp", "cnn", "vit6"]

        # From the paper's own words: 6 layers, 9 layers, 6 blocks of 12 tensors and 8 more.
        tensors = np.array([[12], [18], [80]])
        points = np.array([[4], [6], [6]])
        expected = tensors + points * np.array([0, 1, 20, 300])
        np.testing.assert_array_equal(found["n_tensors"], expected)
        reduction = found["reduction"].sel(scaling="tensor") / 100 + 1
        np.testing.assert_allclose(reduction, np.sqrt(tensors / expected), rtol=1e-12)

        # Near the initialisation the surfaces of MLP and CNN are smooth: their range shrinks like
        # the length, or, where it is curved, at most like its square.
        change = found["change"].sel(statistic="range") / 100 + 1
        factor = found["reduction"] / 100 + 1
        assert bool((change > 0.8 * factor**2).all())
        smooth = {"architecture": ["mlp", "cnn"]}
        assert bool((change.sel(smooth) < 1.1 * factor.sel(smooth)).all())

        # The transformer's saturates at the full length, so that the first steps back show less.
        assert bool((change.sel(architecture="vit6").diff("n") < 0).all())

    assert (run / "figure5.png").stat().st_size > 10_000
    assert (run / "figure5.html").read_text().startswith("<!doctype html>")


def test_the_rows_of_figure_5_are_what_its_dataset_says(run):
    rows = {row["quantity"]: row for row in json.loads((run / "figure5.json").read_text())["rows"]}
    assert len(rows) == 3 * (4 * 4 + 3 * 3)
    with xr.open_dataset(run / "figure5.nc", engine="h5netcdf") as found:
        first = found.sel(scaling="tensor", architecture="mlp", n=20)
        change = first["change"].sel(statistic="std").mean().item()
        value = first["value"].sel(statistic="std").mean().item()

    row = rows["MLP, 20 x, change of Std(Loss) / %"]
    assert (row["published"], row["here"]) == (-64.4, pytest.approx(change))
    row = rows["MLP, 20 x, Std(Loss)"]
    assert (row["published"], row["here"]) == (0.0011, pytest.approx(value))
    # Small grey images make another network: nothing can be compared, not even its parameters.
    assert {row["verdict"] for row in rows.values()} == {"not comparable"}


def test_table_4_stands_beside_both_dilutions(run):
    record = json.loads((run / "table4.json").read_text())
    assert len(record["rows"]) == 9
    row = record["rows"][1]
    assert (row["quantity"], row["published"]) == (
        "MLP, 20 x, change of Mean(Grad) of planes / %",
        -65.38,
    )
    assert "by tensors -63.9 %, by parameters -15.8 %" in row["note"]
    assert "over the backbone changes by 0 %" in row["note"]
    assert (run / "table4.png").stat().st_size > 10_000


def test_published_changes_follow_from_published_values_as_far_as_they_are_printed():
    """Two transcriptions of one table check each other."""
    for name, values in surface_rows.VALUES.items():
        for n, changes in surface_rows.CHANGES[name].items():
            for place, change in enumerate(changes, start=1):
                plain, here = (float(values[number][place]) for number in (0, n))
                low = (here - 5e-5) / (plain + 5e-5)
                high = (here + 5e-5) / (plain - 5e-5)
                assert low - 1e-3 <= 1 + change / 100 <= high + 1e-3


@pytest.mark.parametrize(("present", "wanted"), [(10, 100), (100, 10), (10, 10), (3, 7)])
def test_relabelled_images_have_the_wanted_classes_and_keep_what_they_can(present, wanted):
    y = torch.arange(5000) % present
    images = Images(torch.zeros(5000, 1), y, torch.zeros(5000, 1), y)
    found = relabel(images, wanted, seed=1)
    assert found.classes == wanted
    if wanted >= present:  # each class was split: the old one follows from the new
        parents = [set(y[found.y_train == label].tolist()) for label in range(wanted)]
        assert all(len(parent) == 1 for parent in parents)
    again = relabel(images, wanted, seed=1)
    assert torch.equal(found.y_train, again.y_train)
    assert torch.equal(images.y_train, y)


def test_half_the_span_is_half_the_plane():
    """The outer points of one plane are those of another that reaches so far."""
    recipe = Recipe(backbone="mlp", data="digits", seed=42)
    images = recipe.images()
    near, far = (
        _measure(recipe, images, PlaneBudget(size, 20, span=span), "tensor")
        for size, span in ((3, 0.5), (5, 1.0))
    )
    np.testing.assert_allclose(near["alpha"], [-0.5, 0, 0.5])
    np.testing.assert_allclose(near["loss"], far["loss"][:, 1:4, 1:4], rtol=1e-6)

    # Mean(Grad) is per step of 51 points, which are as much nearer to each other.
    labels = [xr.Variable(name, [0]) for name in ("seed", "scaling")]
    slopes = []
    for planes in (near, far.isel(alpha=slice(1, 4), beta=slice(1, 4))):
        for label in labels:
            planes = xr.concat([planes], label, data_vars=["loss"])
        planes["scaling"] = ["tensor"]
        slopes.append(statistics_of(planes)["value"].sel(statistic="mean_grad"))
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-4)  # differences of float32 losses


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "^100 images, 5 x 5 points$"),
        (["--size", "7"], "^100 images, 7 x 7 points$"),
        (["--size", "51", "--tolerance", "0.01"], "interpolated to 1 % of their range$"),
        (
            ["--samples", "9", "--span", "0.5", "--tolerance", "0.1"],
            "9 images, .* from -0.5 to 0.5",
        ),
    ],
)
def test_planes_are_as_large_as_was_asked_for(options, words):
    args = example.parse_args(["--scale", "cpu", *options])
    assert re.search(words, str(plane_budget("vit6", args)))
    if not options:
        assert plane_budget("mlp", args) == PlaneBudget(51, 500)


@pytest.mark.parametrize("data", ["CIFAR-10", "CIFAR-100", "digits"])
@pytest.mark.parametrize("size", [51, 25])
def test_a_verdict_needs_the_data_and_the_points_of_the_paper(data, size, monkeypatch):
    classes = 100 if data == "CIFAR-100" else 10
    y = torch.tensor([classes - 1])
    monkeypatch.setattr(
        surface_rows, "load", lambda _: Images(torch.zeros(1, 3, 32, 32), y, torch.zeros(1, 1), y)
    )
    monkeypatch.setattr(surface_rows, "identify", lambda _: data)
    free = {
        name
        for name in ("mlp", "cnn", "vit6")
        if not surface_rows.obstacles_of(Recipe(backbone=name), PlaneBudget(size, 500))
    }
    paper = {"CIFAR-10": {"mlp"}, "CIFAR-100": {"cnn", "vit6"}, "digits": set()}
    assert free == (paper[data] if size == 51 else set())


def test_table_4_agrees_where_the_interval_meets_the_published_deviation():
    coords = {"statistic": ["mean_grad"], "n": [1, 20, 300], "seed": [42, 43, 44]}
    change = xr.DataArray([[[-3.0, -3.1, -2.9]] * 3], coords, ("statistic", "n", "seed"))
    zeros = xr.DataArray(np.zeros(3), {"n": coords["n"]}, ("n",))
    names = ("change_backbone", "dilution_by_tensor", "dilution_by_parameter")
    measured = xr.Dataset({"change": change} | dict.fromkeys(names, zeros))

    rows = table4.rows_of("vit6", measured, [])
    assert [row.deviation for row in rows] == [0.47, 3.62, 8.85]
    assert [row.verdict for row in rows] == ["agrees", "disagrees", "disagrees"]
    rows = table4.rows_of("vit6", measured, ["other data"])
    assert {row.verdict for row in rows} == {"not comparable"}


def test_figure_5_shows_the_recipes_that_it_would_run(capsys):
    with pytest.raises(SystemExit):
        example.main(["--show-recipe", "--backbone", "mlp"])
    assert "8 runs, all with" in capsys.readouterr().out
