"""What the search for alpha asks for, and the rows that it prints."""

from dataclasses import asdict

import matplotlib as mpl
import numpy as np
import pytest
import table15_alpha_search
import xarray as xr
from PIL import Image

mpl.use("agg")

from lab.data.identity import NAMES
from lab.studies.alpha_search import COARSE, METHODS, fine_candidates
from lab.studies.conditions import published_conditions
from lab.training.recipe import Recipe
from lab.training.strengths import TABLES_16_TO_19
from tests.helpers.published import CHOSEN


@pytest.fixture
def searched(monkeypatch):
    """What the search for alpha would be asked for, and the rows it prints; a grid has 3 or 4."""
    recipes, rows = [], []

    def search(recipe, seeds, _):
        recipes.append(recipe)
        both = np.full((len(METHODS), len(seeds)), 3.0)
        both[METHODS.index("grid"), ::2] = 4.0
        both[METHODS.index("two stages")] = np.array(seeds) / 100
        return xr.Dataset(
            {
                "alpha": (("search", "seed"), both),
                "accuracy": (("search", "seed"), both),
                "n_runs": ("search", [11, 15, 1, 1]),
            },
            {"search": list(METHODS), "seed": list(seeds)},
        )

    monkeypatch.setattr(table15_alpha_search, "compare_searches", search)
    # Whatever is asked for lies there, and is what the paper has.
    monkeypatch.setattr(
        table15_alpha_search,
        "conditions_of",
        lambda recipe, n_seeds: published_conditions(
            recipe.backbone, recipe.data if recipe.data in NAMES else "imagenet", n_seeds
        ),
    )
    monkeypatch.setattr(table15_alpha_search, "draw_searches", lambda *_: None)
    monkeypatch.setattr(
        table15_alpha_search, "publish", lambda data, _, found, **__: rows.extend([data, *found])
    )
    return recipes, rows


def test_the_search_covers_table_15(searched):
    table15_alpha_search.main(["--scale", "paper"])
    recipes, (data, *rows) = searched
    names = {"mlp": "MLP", "cnn": "CNN", "vit6": "ViT-6L"}
    asked = {(r.n, names[r.backbone]): (r.lr, r.weight_decay) for r in recipes}
    assert asked == {place: (rate, decay) for place, (rate, decay, _) in CHOSEN.items()}
    assert {recipe.data for recipe in recipes} == {"cifar100"}
    assert data["seed"].values.tolist() == list(range(42, 52))

    found = {row.quantity: row for row in rows}
    for (n, name), (_, _, alpha) in CHOSEN.items():
        row = found[f"{name}, {n} x, log10 of alpha"]
        assert row.published == pytest.approx(np.log10(alpha), abs=1e-3)
        assert row.here == pytest.approx((np.log10(3) + np.log10(4)) / 2)
        # Half a step of the grid is a factor of 1.47.
        assert row.verdict == ("agrees" if alpha == 4.642 else "disagrees")


def test_the_search_covers_tables_16_to_19(searched, tmp_path):
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for index in range(10):
                Image.new("RGB", (40, 30)).save(tmp_path / part / label / f"{index}.png")

    names = ["resnet18", "vit_base"]
    options = ["--architectures", *names, "--data", str(tmp_path)]
    table15_alpha_search.main(["--scale", "paper", *options])
    recipes, (data, *rows) = searched
    assert [(r.backbone, r.n) for r in recipes] == [(b, n) for b in names for n in (1, 10, 20)]
    assert data["seed"].values.tolist() == [42, 43, 44, 45]
    assert data["alpha"].sizes["architecture"] == 2

    resnet = recipes[0]
    assert (resnet.optimizer, resnet.lr, resnet.batch, resnet.epochs) == ("sgd", 0.2, 512, 90)
    assert (resnet.image, resnet.milestones, resnet.data) == (224, (30, 60, 80), str(tmp_path))

    held = Recipe(**asdict(resnet) | {"held_out": 0.1}).images()
    assert len(held.x_train) == 18
    assert all("/train/" in name for name in held.x_test.tolist())

    found = {row.quantity: row for row in rows}
    published = np.log10([0.0178, 0.0042, 0.0178, 0.0032])
    row = found["ResNet-18, 1 x, log10 of alpha"]
    assert row.published == pytest.approx(published.mean(), abs=1e-3)
    assert row.deviation == pytest.approx(published.std(ddof=1), abs=1e-3)
    assert row.here == pytest.approx(np.log10([0.42, 0.43, 0.44, 0.45]).mean())
    assert row.verdict == "disagrees"
    assert (
        row.note == "alpha by seed 0.42, 0.43, 0.44, 0.45; published 0.0178, 0.0042, 0.0178, 0.0032"
    )

    assert found["ResNet-18, 10 x, log10 of alpha"].verdict == "agrees"
    assert found["candidates of stage 1"].verdict == "agrees"
    assert len(rows) == 2 + 6 * (1 + len(METHODS))


def test_the_strengths_of_imagenet_are_candidates_of_the_two_stages():
    candidates = np.concatenate([fine_candidates(centre) for centre in COARSE])
    for row in TABLES_16_TO_19.values():
        for alpha in np.concatenate(list(row.values())):
            assert np.abs(candidates / alpha - 1).min() < 0.02  # four decimals are printed


def test_a_pair_that_was_not_searched_is_nan(searched):
    table15_alpha_search.main(["--scale", "paper", "--architectures", "mlp", "resnet50"])
    recipes, (data, *_) = searched
    assert {r.backbone: r.data for r in recipes} == {"mlp": "cifar100", "resnet50": "imagenet"}
    missing = data["alpha"].isnull().all(["search", "seed"])
    assert missing.sel(architecture="ResNet-50", n=7).item()
    assert int(missing.sum()) == 1


def test_another_number_of_branches_is_searched(tmp_path):
    output = tmp_path / "search.nc"
    options = ["--n", "2", "3", "--cache", str(tmp_path / "cache"), "--output", str(output)]
    table15_alpha_search.main(options)
    with xr.open_dataset(output, engine="h5netcdf") as result:
        assert result["n"].values.tolist() == [2, 3]
        assert result["architecture"].values.tolist() == ["MLP"]
        assert bool(result["accuracy"].notnull().all())
