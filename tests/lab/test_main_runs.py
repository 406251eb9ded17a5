"""The runs that most figures share: kept apart, and reported when they diverge."""

import json
from dataclasses import replace

import figure4_attention
import figure8_learning
import matplotlib as mpl
import numpy as np
import pytest
import table5_gradient_conflict
import xarray as xr

mpl.use("agg")

from lab.studies import main_runs
from lab.training import scales
from lab.training.recipe import Recipe
from lab.training.train import train
from tests.helpers.lab_runs import ARGS, accuracy_of, make_up_runs


def test_main_runs_keep_kinds_and_seeds_apart(monkeypatch):
    monkeypatch.setattr(main_runs, "sweep", make_up_runs)
    found, _ = main_runs.main_runs(ARGS, ["mlp", "cnn"])
    for backbone, run in found.items():
        for kind, n, alpha in (("plain", 0, 1.0), ("asymmetric", 20, 0.0316)):
            for seed in (42, 43):
                recipe = Recipe(backbone=backbone, seed=seed, n=n, alpha=alpha)
                here = run["test_accuracy"].sel(training=kind, seed=seed)[-1].item()
                assert here == accuracy_of(recipe)


def test_tables_31_and_32_from_curves():
    epochs = np.arange(1, 11)
    test = np.array([[0.1, 0.2, 0.3, 0.38, 0.39, 0.4, 0.4, 0.4, 0.4, 0.4]])
    train = test + 0.01 * epochs
    run = xr.Dataset(
        {"test_accuracy": (("seed", "epoch"), test), "train_accuracy": (("seed", "epoch"), train)},
        {"epoch": epochs, "seed": [42]},
    )
    # 95 % of 0.4 is 0.38, in epoch 4; gaps in epochs 1, 5 and 10.
    expected = [[4], [0.4], [0.01], [0.05], [0.1]]
    np.testing.assert_allclose(figure8_learning.summary(run), expected)


def test_table_5_takes_architectures_with_unequal_steps():
    traces = {}
    for name, length in (("mlp", 3), ("vit6", 5)):
        values = np.linspace(-0.5, 0.1 * length, 2 * length).reshape(2, length)
        coords = {"seed": [42, 43], "step": np.arange(length)}
        traces[name] = xr.Dataset({"cosine_total": (("seed", "step"), values)}, coords)

    found = table5_gradient_conflict.summarise_each(traces)
    for name, trace in traces.items():
        here = found.sel(architecture=name)
        np.testing.assert_allclose(here["final"], trace["cosine_total"][:, -1])
        np.testing.assert_allclose(here["mean"], trace["cosine_total"].mean("step"))


def _train_and_lose(lost):
    """Tiny runs, of which some diverge at once."""

    def runs(recipes, **_):
        small = [
            replace(recipe, per_class=2, test_per_class=1, n=min(recipe.n, 1)) for recipe in recipes
        ]
        bad = {"optimizer": "sgd", "lr": 1e30}
        return [train(replace(recipe, **bad) if lost(recipe) else recipe) for recipe in small]

    return runs


@pytest.mark.parametrize("lost", ["all", "asymmetric"])
def test_figures_of_attention_say_that_runs_diverged(lost, monkeypatch, tmp_path, capsys):
    chosen = {"all": lambda recipe: True, "asymmetric": lambda recipe: recipe.n > 0}[lost]
    monkeypatch.setattr(main_runs, "sweep", _train_and_lose(chosen))
    path = tmp_path / "figure.nc"
    figure4_attention.main(["--seeds", "1", "--output", str(path)])
    record = json.loads(path.with_suffix(".json").read_text())
    assert len(record["rows"]) == 1 + 27  # figure 4, and table 27 with figure 9

    for row in record["rows"]:
        is_plain = lost == "asymmetric" and ", plain" in row["quantity"]
        assert (row["here"] is None) != is_plain
        assert row["verdict"] == "not comparable"

    for name in record["figures"]:
        assert (tmp_path / name).is_file()

    assert [name.removesuffix(".png") for name in record["figures"]] == [
        "figure",
        "figure.maps",
        "figure.statistics",
    ]

    said = "all runs diverged before attention was measured" in capsys.readouterr().out
    assert said == (lost == "all")

    if lost == "all":
        result = xr.load_dataset(path, engine="h5netcdf")
        assert result["diverged"].values.tolist() == [[1], [1]]


def test_figure_4_has_no_verdict_on_what_diverged(monkeypatch, tmp_path):
    """At the paper's scale, with made-up attention of plain runs alone."""
    seen = train(
        replace(
            scales.recipe_for("vit6", ARGS, "cifar100"), per_class=2, test_per_class=1, epochs=1
        )
    )
    kinds = xr.Variable("training", list(main_runs.KINDS))
    both = xr.concat([seen, seen.where(False)], kinds, data_vars="all").expand_dims(seed=[42])
    monkeypatch.setattr(figure4_attention, "main_runs", lambda *_: ({"vit6": both}, "nothing"))
    path = tmp_path / "figure.nc"
    options = ["--scale", "paper", "--data", "digits", "--output", str(path)]
    figure4_attention.main(options)
    rows = json.loads(path.with_suffix(".json").read_text())["rows"]
    for row in rows:
        is_plain = ", plain" in row["quantity"]
        assert (row["here"] is None) != is_plain
        assert row["verdict"] == "not comparable"
