"""The arms differ in what they are about, and in nothing else."""

from dataclasses import asdict

import numpy as np
import penalty_or_resonance as script
import xarray as xr


def test_every_arm_changes_one_thing():
    recipes = script.recipes_of(script.parse_args(["--scale", "paper", "--data", "cifar10"]))
    plain = recipes["plain"]
    assert (plain.backbone, plain.per_class, plain.epochs, plain.n) == ("vit6", 500, 200, 0)

    settings = asdict(plain)
    changes = {
        arm: {name: value for name, value in asdict(recipe).items() if value != settings[name]}
        for arm, recipe in recipes.items()
    }
    assert changes["labels"] == {"n": 20, "alpha": 0.316}  # 1.0 with 100 classes
    assert changes["no labels"] == changes["labels"] | {"static_labels": False}


def test_some_arms_can_be_asked_for():
    args = script.parse_args(["--arms", "no labels", "plain"])
    assert list(script.recipes_of(args)) == ["plain", "no labels"]


def test_changes_are_paired_by_seed_and_by_protocol():
    def run(last, best):
        return xr.Dataset({"test_accuracy": ("epoch", [best, last])}, {"epoch": [1, 2]})

    by_arm = {
        "plain": [run(0.50, 0.60), run(0.52, 0.62), run(0.54, 0.61)],
        "labels": [run(0.55, 0.60), run(0.58, 0.62), run(0.58, 0.61)],
    }
    rows = {row.quantity: row for row in script.rows_of(script.join_runs(by_arm, [42, 43, 44]))}
    np.testing.assert_allclose(rows["labels - plain, last epoch / points"].here, 5.0)
    np.testing.assert_allclose(rows["labels - plain, best epoch / points"].here, 0.0, atol=1e-12)
    assert "Holm" in rows["labels - plain, last epoch / points"].note
    assert {row.published for row in rows.values()} == {None}
