"""The networks of the credit audit: kept, flagged when they diverge, and put in order."""

from dataclasses import replace

import credit_audit
import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr

mpl.use("agg")

import nudging
from lab.backbones.resmlp import LAYERS
from lab.data.images import Images, digits
from lab.data.samples import subset
from lab.studies import credit_run
from lab.studies.credit_run import Case, join_cases, run_case
from lab.studies.credit_table import order_methods, order_row
from lab.training.local_training import LocalRecipe, train_locally


def _first_ten():
    some = subset(digits(), 10)
    return some.x_train, some.y_train, some.x_test, some.y_test


def test_a_run_is_kept_with_its_credit(tmp_path):
    case = Case("DFA", 1, LocalRecipe(epochs=1, width=16, batch_size=50), "digits", 10)
    found = run_case(case, cache=tmp_path)
    again = run_case(case, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert again.drop_attrs().identical(found.drop_attrs())

    credit = nudging.load_credit(nudging.saved_credit(again))
    trained = train_locally("DFA", Images(*_first_ten()), seed=1, recipe=case.recipe)
    test = digits()
    once = nudging.nudge(
        trained.model, (test.x_test, test.y_test), credit, LAYERS, dtype=torch.float64, samples=None
    )
    np.testing.assert_allclose(once["loss_change"][:, 0], again["loss_change"].sel(eta=0.01))


@pytest.mark.parametrize("method", ["BP", "DFA", "FA", "SB", "CB"])
def test_a_network_that_diverges_is_recorded_and_kept(method, tmp_path):
    settings = {"epochs": 2, "width": 16, "batch_size": 50}
    found = run_case(
        Case(method, 1, LocalRecipe(**settings, lr=1e30), "digits", 10), cache=tmp_path
    )
    assert found["diverged"].item() == 1

    for name in found.data_vars:
        if name != "diverged":
            assert bool(found[name].isnull().all()), name
            assert "long_name" in found[name].attrs

    (path,) = tmp_path.iterdir()
    before = path.stat().st_mtime_ns
    again = run_case(
        Case(method, 1, LocalRecipe(**settings, lr=1e30), "digits", 10), cache=tmp_path
    )
    assert again.drop_attrs().identical(found.drop_attrs())
    assert path.stat().st_mtime_ns == before

    other = run_case(Case(method, 2, LocalRecipe(**settings), "digits", 10), cache=tmp_path)
    assert other["diverged"].item() == 0
    assert np.isfinite(other["final_accuracy"])

    both = join_cases([found, other], [method], [1, 2])
    assert both["diverged"].values.tolist() == [[1, 0]]
    assert both["final_accuracy"].isnull().values.tolist() == [[True, False]]
    assert both.attrs["n_samples"] == 360


def test_a_last_step_that_diverges_is_noticed(tmp_path):
    """One step: its loss is that of the initial network."""
    recipe = LocalRecipe(epochs=1, width=16, batch_size=100, lr=1e30)
    found = run_case(Case("BP", 1, recipe, "digits", 10), cache=tmp_path)
    assert np.isfinite(found["train_loss"]).all()
    assert found["diverged"].item() == 1
    assert bool(found["test_accuracy"].isnull().all())


def test_a_run_kept_before_there_was_a_flag_had_not_diverged(tmp_path):
    case = Case("BP", 1, LocalRecipe(epochs=1, width=16, batch_size=50), "digits", 10)
    found = run_case(case, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    old = xr.load_dataset(path, engine="h5netcdf").drop_vars("diverged")
    del old.attrs["digest"]  # nor was there a digest
    old.to_netcdf(path, engine="h5netcdf")
    assert run_case(case, cache=tmp_path).drop_attrs().identical(found.drop_attrs())


def test_a_run_kept_before_variables_were_renamed_has_their_new_names(tmp_path):
    case = Case("BP", 1, LocalRecipe(epochs=1, width=16, batch_size=50), "digits", 10)
    found = run_case(case, cache=tmp_path)
    (path,) = tmp_path.iterdir()

    # As written before: these two names were shorter.
    names = {"gradient_norm": "grad_norm", "mean_loss_gradient_norm": "mean_loss_grad_norm"}
    earlier = xr.load_dataset(path, engine="h5netcdf").rename(names)
    del earlier.attrs["digest"]  # there was none then
    earlier.to_netcdf(path, engine="h5netcdf")
    assert run_case(case, cache=tmp_path).drop_attrs().identical(found.drop_attrs())


@pytest.mark.parametrize("lost", [["SB"], ["SB", "CB", "DFA"]])
def test_the_audit_goes_on_after_networks_that_diverge(lost, tmp_path, monkeypatch, capsys):
    def trained(method, images, *, seed, recipe):
        lr = 1e30 if method in lost else recipe.lr
        return train_locally(method, images, seed=seed, recipe=replace(recipe, lr=lr))

    monkeypatch.setattr(credit_run, "train_locally", trained)
    output = tmp_path / "audit.nc"
    options = ["--methods", "SB+pen", "CB+pen", "DFA+pen", "--seeds", "1", "--epochs", "1"]
    credit_audit.main([*options, "--output", str(output), "--cache", str(tmp_path / "cache")])
    result = xr.load_dataset(output, engine="h5netcdf")
    diverged = [int(name in lost) for name in ("SB", "CB", "DFA")]
    assert result["diverged"].values.ravel().tolist() == diverged
    assert result["final_accuracy"].isnull().values.ravel().tolist() == [x == 1 for x in diverged]

    printed = capsys.readouterr().out
    assert "1 of 1 networks diverged" in printed
    assert "undefined here: SB+pen" in printed


def test_a_damaged_run_is_made_again(tmp_path):
    case = Case("BP", 1, LocalRecipe(epochs=1, width=16, batch_size=50), "digits", 10)
    found = run_case(case, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match=f"{path.name} in the cache is damaged, run again"):
        again = run_case(case, cache=tmp_path)

    assert again.identical(found)
    assert run_case(case, cache=tmp_path).drop_attrs().identical(found.drop_attrs())  # whole again


def test_methods_within_three_percent_are_equal():
    assert order_methods({"SB+pen": 0.453, "CB+pen": 0.360, "DFA+pen": 0.361}) == "SB > CB = DFA"
    assert order_methods({"SB+pen": 0.322, "CB+pen": 0.679, "DFA+pen": -0.1}) == "CB > SB > DFA"


def test_orders_are_judged_where_nothing_stands_in_the_way_and_nudges_by_how_far_they_fall():
    published, here = {"SB": -3.0, "CB": -1.0}, {"SB": -2.0, "CB": 1.0}
    row = order_row("deep_change", published, here)
    assert (row.published, row.here, row.verdict) == ("SB > CB", "SB > CB", "agrees")

    row = order_row("deep_cosine", published, {"SB": 1.0, "CB": -1.0})
    assert (row.published, row.here, row.verdict) == ("CB > SB", "SB > CB", "disagrees")
    assert order_row("deep_cosine", published, here, ["digits"]).verdict == "not comparable"

    row = order_row("deep_cosine", published, {"SB": float("nan"), "CB": -1.0})
    assert (row.here, row.verdict, row.note) == ("CB", "not comparable", "undefined here: SB")
