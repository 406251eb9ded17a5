"""Plots show the numbers they were given, and cope with what is not finite."""

import json
import re

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
import pytest
import torch
import xarray as xr

import landscape
from tests.landscape.surfaces.test_between import make, make_data, make_path


def surface(values=None):
    a, b = np.linspace(-1, 1, 5), np.linspace(0, 3, 4)
    values = np.add.outer(a**2, b) if values is None else values
    attrs = {"long_name": "mean loss"}
    return xr.Dataset(
        {"loss": (("alpha", "beta"), values, attrs)},
        coords={"alpha": a, "beta": b},
        attrs={"made_by": "landscape.grid", "model": "Net"},
    )


def test_contours_are_not_transposed_and_mark_the_model():
    ax = landscape.plot_contour(surface())
    assert ax.get_xlim() == (-1, 1)
    assert ax.get_ylim() == (0, 3)
    drawn = ax.collections[0]
    # The lowest values are at beta = 0, around alpha = 0.
    lowest = next(path for path in drawn.get_paths() if len(path.vertices))
    assert abs(lowest.vertices[:, 0]).max() < 0.6
    assert lowest.vertices[:, 1].max() < 0.5
    assert ax.get_lines()[-1].get_xydata().tolist() == [[0, 0]]
    assert [t.get_text() for t in ax.figure.axes[1].get_yticklabels()]
    assert ax.figure.axes[1].get_ylabel() == "mean loss"


def test_contours_show_the_path_of_a_trajectory_and_the_models_of_a_plane():
    model, data = make(), make_data()
    found = landscape.trajectory(model, make_path(model, data), data, samples=24, size=4)
    ax = landscape.plot_contour(found, log=True)
    path = ax.get_lines()[0].get_xydata()
    np.testing.assert_array_equal(path[:, 0], found["path_alpha"])
    np.testing.assert_array_equal(path[:, 1], found["path_beta"])
    found = landscape.plane([make(0), make(1), make(2)], data, samples=24, size=4)
    ax = landscape.plot_contour(found)
    drawn = np.concatenate([line.get_xydata() for line in ax.get_lines()])
    np.testing.assert_array_equal(drawn[:, 0], found["model_alpha"])


def holes():
    values = surface()["loss"].values.copy()
    values[0, 0], values[4, 3] = np.nan, np.inf
    return surface(values)


def test_every_plot_copes_with_what_is_not_finite(tmp_path):
    ax = landscape.plot_contour(holes())
    crosses = ax.get_lines()[0].get_xydata().tolist()
    assert crosses == [[-1, 0], [1, 3]]
    landscape.plot_surface(holes())
    landscape.plot_surfaces({"a": holes(), "b": surface()})
    nothing = surface(np.full((5, 4), np.nan))
    for figure_of in (landscape.plot_contour, landscape.plot_surface):
        figure_of(nothing).figure.savefig(tmp_path / "figure.png")


def test_surfaces_share_one_scale():
    one, two = surface(), surface(10 * surface()["loss"].values)
    axes = landscape.plot_surfaces({"one": one, "two": two})
    assert [ax.get_title() for ax in axes] == ["one", "two"]
    scales = [ax.collections[0].get_clim() for ax in axes]
    assert scales == [(0, 40), (0, 40)]
    assert {ax.get_zlim() for ax in axes} == {(0, 40)}


def test_a_line_is_drawn_with_its_error():
    found = landscape.line(make(0), make_data(), to=make(1), samples=24, size=5)
    ax = landscape.plot_line(found, label="straight")
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), found["loss"])
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max(), (found["loss"] + found["loss_se"]).max())
    assert ax.get_xlabel() == "distance along the first direction"


def test_a_density_is_drawn_on_a_log_scale():
    torch.manual_seed(0)
    found = landscape.curvature(make(), make_data(), samples=24, k=2, density_steps=10)
    ax = landscape.plot_density(found)
    assert ax.get_yscale() == "log"
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), found["density"])
    with pytest.raises(ValueError, match="`curvature`: expected a density"):
        landscape.plot_density(found.drop_vars("density"))


def test_the_page_holds_every_number_and_loads_nothing():
    page = landscape.html_surface(holes(), title="a < b </script>")
    data = json.loads(re.search(r"const data = (.*);", page)[1].replace("<\\/", "</"))
    assert data["a"] == holes()["alpha"].values.tolist()
    values = np.array([[np.nan if z is None else z for z in row] for row in data["z"]])
    expected = holes()["loss"].values
    np.testing.assert_array_equal(values, np.where(np.isfinite(expected), expected, np.nan))
    assert "http" not in page
    assert "src=" not in page
    assert page.count("</script>") == 1
    assert "a &lt; b" in page


@pytest.mark.parametrize("plot", [landscape.plot_contour, landscape.plot_surface])
def test_what_cannot_be_drawn_is_refused(plot):
    with pytest.raises(
        ValueError, match="`surface`: expected 'height' over alpha and beta, got loss"
    ):
        plot(surface(), variable="height")
