"""Tables are put together rightly: with runs that are made up, so that the answer is known."""

import json
from argparse import Namespace
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

mpl.use("agg")

from lab.studies import study
from lab.studies.cells import Cell
from lab.studies.conditions import published_conditions
from lab.studies.draw_changes import draw_changes
from lab.studies.study import rows_of, run_cells
from lab.training.recipe import Recipe
from tests.helpers.lab_runs import ARGS, accuracy_of, make_up_runs

SEEDS = [42, 43, 44]


@pytest.fixture
def cells(monkeypatch):
    monkeypatch.setattr(study, "sweep", make_up_runs)

    cells = []
    for backbone, n in (("mlp", 20), ("mlp", 3), ("cnn", 20)):
        plain = Recipe(backbone=backbone)
        labels = {"architecture": backbone, "n": n}
        asymmetric = replace(plain, n=n, alpha=2.0)
        alphas = {42: 7.0} if backbone == "cnn" else None
        cells.append(Cell(labels, plain, asymmetric, (30.0, 31.5), alphas))

    return cells


def test_every_run_lands_in_its_cell(cells):
    result = run_cells(cells, ARGS, [42, 43])
    assert result["n"].values.tolist() == [3, 20]  # numbers in order

    for cell in cells:
        for seed in (42, 43):
            here = result["accuracy"].sel(cell.labels).sel(seed=seed)
            alpha = 7.0 if (cell.plain.backbone, seed) == ("cnn", 42) else 2.0
            expected = accuracy_of(replace(cell.asymmetric, seed=seed, alpha=alpha))
            assert here.sel(training="asymmetric").item() == 100 * expected
            expected = accuracy_of(replace(cell.plain, seed=seed))
            assert here.sel(training="plain").item() == 100 * expected

    assert bool(result["accuracy"].sel(architecture="cnn", n=3).isnull().all())
    assert result["published_change"].sel(architecture="mlp", n=3).item() == 1.5

    mlp = result.sel(architecture="mlp", n=20)
    np.testing.assert_allclose(mlp["change"], 100 * (10 * 20 + 2.0 - 1.0) / 1e3)


def test_a_cell_agrees_where_its_intervals_meet_the_published_ones(cells, monkeypatch):
    """At the paper's conditions: here 1.1 % in the middle of the seeds, after 200 epochs."""
    paper = published_conditions("mlp", "cifar100", 3)
    monkeypatch.setattr(study, "conditions_of", lambda *_: paper)
    plain_percent = 100 * np.mean([accuracy_of(replace(cells[0].plain, seed=s)) for s in SEEDS])
    published = plain_percent + 0.5, plain_percent + 20.6

    cell = replace(cells[0], published=published, deviations=(0.5, 0.6), p="< 0.001")
    rows = rows_of([cell], run_cells([cell], ARGS, SEEDS), 3)
    assert [row.verdict for row in rows] == ["agrees"] * 3
    assert [row.deviation for row in rows] == [0.5, 0.6, 0.78]  # the root of .25 + .36
    assert [row.p for row in rows] == ["", "", "< 0.001"]

    far = replace(cell, published=(plain_percent + 2.0, plain_percent + 24.0))
    rows = rows_of([far], run_cells([far], ARGS, SEEDS), 3)
    assert [row.verdict for row in rows] == ["disagrees"] * 3


def test_both_protocols_are_kept(cells, monkeypatch):
    """A run that falls after its best epoch, and one that diverged after it."""
    falling = xr.Dataset({"test_accuracy": ("epoch", [0.2, 0.5, 0.4])})
    diverged = xr.Dataset({"test_accuracy": ("epoch", [0.2, 0.5, np.nan])})
    monkeypatch.setattr(study, "sweep", lambda recipes, **_: [falling, falling, diverged, falling])
    cell = replace(cells[0], alphas=None)
    for protocol, expected in (("last", 40.0), ("best", 50.0)):
        result = run_cells([replace(cell, protocol=protocol)], ARGS, [42, 43]).squeeze()
        assert result["accuracy"].sel(training="plain").values.tolist() == [expected] * 2
        assert result["last_accuracy"].sel(training="plain", seed=42) == 40.0
        assert result["best_accuracy"].sel(training="plain", seed=42) == 50.0
        lost = result["best_accuracy"].sel(training="asymmetric", seed=42)
        assert bool(lost.isnull())


def test_rows_and_figure_have_every_cell(cells):
    result = run_cells(cells, ARGS, [42, 43])
    rows = rows_of(cells, result, 2)
    names = ["mlp, 20 x", "mlp, 3 x", "cnn, 20 x"]
    quantities = ["plain / %", "asymmetric / %", "change / points"]
    expected = [f"{name}, {quantity}" for name in names for quantity in quantities]
    assert [row.quantity for row in rows] == expected

    # Digits are not what the paper has, whatever comes out.
    assert {row.verdict for row in rows} == {"not comparable"}
    assert all("digits, not CIFAR-100" in row.note for row in rows)

    figure = draw_changes(result, x="n", hue="architecture")
    mlp, cnn = figure.axes
    points = [line for line in mlp.get_lines() if line.get_label() == "published"]
    assert points[0].get_ydata().tolist() == [1.5, 1.5]
    assert [tick.get_text() for tick in cnn.get_xticklabels()] == ["20"]

    # The intervals drawn are those of the table.
    (bars,) = mlp.containers[0][2]
    drawn = [tuple(segment[:, 1]) for segment in bars.get_segments()]
    is_drawn = [row.quantity.startswith("mlp") and "change" in row.quantity for row in rows]
    listed = [(row.low, row.high) for row, chosen in zip(rows, is_drawn, strict=True) if chosen]
    np.testing.assert_allclose(sorted(drawn), sorted(listed))


def _diverging(lost):
    """Make up runs, of which those diverge whose recipe is lost."""

    def make_up(recipes, **_):
        runs = make_up_runs(recipes)
        return [
            run * np.nan if lost(recipe) else run for recipe, run in zip(recipes, runs, strict=True)
        ]

    return make_up


@pytest.mark.parametrize(
    ("lost", "words", "here"),
    [
        (lambda recipe: True, {"all runs diverged"}, [None, None, None]),
        (lambda recipe: recipe.backbone == "mlp", {"all runs diverged"}, [None, None, 20.1]),
        (lambda recipe: recipe.n > 0, {"a run of every pair diverged"}, [None, None, None]),
        (lambda recipe: recipe.n == 3, set(), [20.1, None, 20.1]),
    ],
    ids=["all", "one panel", "asymmetric", "one cell"],
)
def test_a_table_is_written_though_runs_diverged(
    cells, lost, words, here, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(study, "sweep", _diverging(lost))
    draw, figures = study.draw_changes, []

    def keep_figure(*args, **settings):
        figures.append(draw(*args, **settings))
        return figures[0]

    monkeypatch.setattr(study, "draw_changes", keep_figure)
    path = tmp_path / "table.nc"

    # All pairs of a seed are shifted alike: without a searched strength for one seed.
    cells = [replace(cell, alphas=None) for cell in cells]
    study.study(cells, Namespace(**vars(ARGS) | {"output": path, "scale": "paper"}))

    result = xr.load_dataset(path, engine="h5netcdf")
    rows = json.loads(path.with_suffix(".json").read_text())["rows"]
    changes = [row for row in rows if row["quantity"].endswith("change / points")]
    for row, expected in zip(changes, here, strict=True):
        if expected is None:
            assert row["here"] is None
            assert "diverged" in row["note"]
        else:
            assert row["here"] == pytest.approx(expected)

    assert int(result["change"].notnull().sum()) == sum(value is not None for value in here)
    assert path.with_suffix(".png").is_file()
    assert {text.get_text() for ax in figures[0].axes for text in ax.texts} == words

    (legend,) = figures[0].legends
    labels = {text.get_text() for text in legend.get_texts()}
    assert labels == ({"published", "here, 95 % interval"} if any(here) else set())
