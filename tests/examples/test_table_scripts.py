"""What the scripts of tables ask for: nothing is trained here."""

from argparse import Namespace
from dataclasses import asdict

import matplotlib as mpl
import pytest
import table1_dose_response
import table3_coatnet
import table6_controls
import table9_few_shot
import table12_cifar10
import table13_label_noise
import table29_all_active
import xarray as xr

mpl.use("agg")

from lab.training.recipe import Recipe
from tests.helpers.published import CHOSEN

SCALES = ("smoke", "cpu", "paper")


def expected_strength(alpha, scale, classes=100):
    """Scale smoke takes digits, of ten classes: a strength goes by the root of the classes."""
    if scale != "smoke" or classes == 10:
        return alpha
    return float(f"{alpha / 10**0.5:.3g}")


TABLE_1 = {
    "MLP": {1: (23.2, 24.3), 7: (23.4, 22.1), 10: (23.3, 21.7), 20: (23.2, 21.1)},
    "CNN": {1: (39.5, 30.8), 7: (39.8, 31.7), 10: (39.7, 24.3), 20: (39.7, 33.6)},
    "ViT-6L": {1: (35.8, 35.9), 7: (35.9, 40.0), 10: (36.0, 41.8), 20: (36.1, 45.3)},
}


@pytest.fixture
def cells_of(monkeypatch):
    """The cells that a script would train."""

    def find(script, *options):
        found = []
        monkeypatch.setattr(script, "study", lambda cells, *_, **__: found.extend(cells))
        script.main(list(options))
        return found

    return find


def changed(cell):
    """What sets the asymmetric recipe apart from the plain one."""
    plain, asymmetric = asdict(cell.plain), asdict(cell.asymmetric)
    assert plain["n"] == 0
    return {name: value for name, value in asymmetric.items() if value != plain[name]}


@pytest.mark.parametrize("scale", SCALES)
def test_table_1_asks_for_tables_1_and_15(cells_of, scale):
    cells = cells_of(table1_dose_response, "--scale", scale)
    places = {(cell.labels["architecture"], cell.labels["n"]) for cell in cells}
    numbers = {"CNN": {20}, "ViT-6L": {1, 20} if scale == "smoke" else {1, 7, 10, 20}}
    if scale == "paper":
        numbers = {}

    assert places == {(a, n) for a in TABLE_1 for n in numbers.get(a, {1, 7, 10, 20})}
    assert len(cells) == len(places)

    for cell in cells:
        name, n = cell.labels["architecture"], cell.labels["n"]
        rate, decay, alpha = CHOSEN[n, name]
        alpha = expected_strength(alpha, scale)
        expected = {"n": n} if alpha == Recipe.alpha else {"n": n, "alpha": alpha}
        assert changed(cell) == expected
        assert cell.asymmetric.alpha == alpha
        assert ("rescaled" in cell.remark) == (scale == "smoke")
        assert cell.published == TABLE_1[name][n]
        assert cell.plain.backbone == {"MLP": "mlp", "CNN": "cnn", "ViT-6L": "vit6"}[name]
        assert cell.plain.weight_decay == (decay if scale == "paper" else CHOSEN[20, name][1])
        assert cell.plain.data == ("digits" if scale == "smoke" else "cifar100")

        if scale == "paper":
            assert (cell.plain.lr, cell.plain.epochs, cell.plain.per_class) == (rate, 200, None)


@pytest.mark.parametrize("scale", SCALES)
def test_table_6_changes_what_each_control_is_about(cells_of, scale):
    cells = cells_of(table6_controls, "--scale", scale)
    asked = {
        "capacity": {"connected": False},
        "heterogeneity": {"loss": "ce"},
        "random init": {"init": "default"},
    }
    numbers = (1, 10, 20) if scale == "paper" else (20,)
    labels = [(f"{c}, {n} x", a) for c in asked for n in numbers for a in TABLE_1]
    assert [(c.labels["control"], c.labels["architecture"]) for c in cells] == labels

    for cell in cells:
        control, _, number = cell.labels["control"].partition(", ")
        n = int(number.removesuffix(" x"))
        _, decay, alpha = CHOSEN[n, cell.labels["architecture"]]
        if scale == "paper":
            assert cell.plain.weight_decay == cell.asymmetric.weight_decay == decay

        alpha = expected_strength(alpha, scale)
        strength = {} if alpha == Recipe.alpha else {"alpha": alpha}
        assert changed(cell) == {"n": n} | strength | asked[control]


@pytest.mark.parametrize("scale", SCALES)
def test_table_29_compares_all_active_with_one(cells_of, scale):
    cells = cells_of(table29_all_active, "--scale", scale)
    active = {"all of 3 active": "all", "one of 3 active": 1}
    published = [(24.6, 20.7), (39.9, 36.2), (36.2, 42.1), (24.6, 23.7), (40.0, 33.9), (36.5, 44.0)]
    assert [cell.published for cell in cells] == published
    assert [c.labels["active"] for c in cells] == [label for label in active for _ in range(3)]

    for cell in cells:
        assert cell.asymmetric.active == active[cell.labels["active"]]
        assert cell.asymmetric.n == 3
        alpha = CHOSEN[7, cell.labels["architecture"]][2]
        assert cell.asymmetric.alpha == expected_strength(alpha, scale)
        assert set(changed(cell)) <= {"n", "alpha", "active"}


@pytest.mark.parametrize(
    ("scale", "levels"),
    [("smoke", [0, 40, 90]), ("cpu", [0, 20, 40, 60, 80]), ("paper", list(range(0, 100, 10)))],
)
def test_table_13_flips_the_labels_of_both_kinds(cells_of, scale, levels):
    cells = cells_of(table13_label_noise, "--scale", scale)
    assert [cell.labels["flipped"] for cell in cells] == levels * 2
    for cell in cells:
        share, classes = cell.labels["flipped"] / 100, cell.labels["table"].split("-")[-1]
        assert cell.plain.label_noise == cell.asymmetric.label_noise == share
        alpha = expected_strength({"10": 25.0, "100": 100.0}[classes], scale, int(classes))
        assert changed(cell) == {"n": 1, "alpha": alpha}
        assert cell.protocol == "best"
        assert cell.plain.data == ("digits" if scale == "smoke" else f"cifar{classes}")


@pytest.mark.parametrize("scale", SCALES)
def test_table_3_attaches_at_the_stage_it_names(scale):
    cells = table3_coatnet.cells_of(Namespace(scale=scale, data=None))
    strengths = {
        "S2 (convolution)": {1: 4.642, 20: 0.215, 100: 0.1, 300: 0.1},
        "S3 (transformer)": {1: 21.544, 20: 4.642, 100: 4.642, 300: 0.1},
    }
    numbers = (1, 100) if scale == "smoke" else (1, 20, 100, 300)
    labels = [(stage, n) for stage in strengths for n in numbers]
    assert [(cell.labels["stage"], cell.labels["n"]) for cell in cells] == labels

    for cell in cells:
        stage, n = cell.labels["stage"], cell.labels["n"]
        alpha = expected_strength(strengths[stage][n], scale)
        where = {"layers": stage[:2].lower(), "n": n, "alpha": alpha}
        assert changed(cell) == where
        assert cell.plain.backbone == "coatnet"


def test_table_26_is_compared_seed_by_seed():
    cells = table3_coatnet.cells_of(Namespace(scale="paper", data=None))
    means = [75.26, 75.88, 75.59, 74.54, 75.91, 76.76, 77.08, 76.82]  # table 3
    assert [cell.published for cell in cells] == [(75.34, mean) for mean in means]

    coords = {"training": ["plain", "asymmetric"], "stage": list(table3_coatnet.KINDS.values())}
    coords |= {"n": [1, 20, 100, 300], "seed": [42, 43, 44, 45, 46, 47]}
    accuracy = xr.DataArray(0.0, coords, list(coords)).copy()
    accuracy.loc[{"training": "asymmetric", "seed": 44}] = 76.0
    accuracy.loc[{"training": "asymmetric", "seed": 46, "stage": "S2 (convolution)"}] = 74.7
    rows = table3_coatnet.seed_rows(cells, xr.Dataset({"accuracy": accuracy}))
    assert len(rows) == 8 * 5

    found = {row.quantity: (row.published, row.here) for row in rows}
    assert found["S2 (convolution), 1 x, seed 44, accuracy / %"] == (75.94, 76.0)
    assert found["S3 (transformer), 100 x, seed 44, accuracy / %"] == (76.95, 76.0)
    assert found["S2 (convolution), 300 x, seed 46, accuracy / %"] == (74.7, 74.7)
    assert {row.verdict for row in rows} == {"not comparable"}  # single runs


def test_one_table_or_one_backbone_can_be_run(cells_of):
    paper = ["--scale", "paper"]
    cells = cells_of(table12_cifar10, *paper, "--architectures", "mlp", "--alpha", "7.5")
    assert [cell.labels["architecture"] for cell in cells] == ["MLP"]
    assert changed(cells[0]) == {"n": 1, "alpha": 7.5}
    assert (cells[0].published, cells[0].deviations) == ((49.5, 50.6), (0.3, 0.4))

    cells = cells_of(table9_few_shot, *paper, "--only", "MLP, CIFAR-10", "--alpha", "7.5")
    assert [cell.per_class for cell in cells] == [10, 50, 100, 500, 1000, None]
    assert {cell.asymmetric.alpha for cell in cells} == {7.5}
    assert all(cell.plain.per_class == cell.per_class for cell in cells)

    options = ["--only", "MLP, CIFAR-10", "--levels", "0", "40"]
    cells = cells_of(table13_label_noise, *paper, *options)
    assert [cell.labels["flipped"] for cell in cells] == [0, 40]


def test_table_12_takes_the_decay_of_one_branch_and_strengths_of_ten_classes(cells_of):
    cells = cells_of(table12_cifar10, "--scale", "paper")
    assert [cell.plain.weight_decay for cell in cells] == [0.001, 0.01, 0.1]
    assert [cell.asymmetric.alpha for cell in cells] == [25.0, 31.6, 1.47]
