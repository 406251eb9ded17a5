"""Plots say what is in the data."""

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize

import nudging
from nudging._plots.dissociation import _spread_apart
from nudging._plots.rankings import find_disagreeing_metrics

RULES = ["SB", "CB", "DFA"]
# Means of a published comparison, as material for a picture.
PUBLISHED = {
    "cosine": [0.322, 0.679, 0.151],
    "accuracy": [0.453, 0.360, 0.360],
    "nudge": [-1.93e-3, -4.26e-4, -4.98e-5],
    "decrease": [0.447, 0.121, 0.095],
}
LAYERS = ["embed", "blocks.0", "blocks.1"]


def comparison(**changes):
    values = PUBLISHED | changes
    return xr.Dataset(
        {k: ("rule", v, {"long_name": f"the {k}"}) for k, v in values.items()},
        coords={"rule": RULES},
    )


def shaded(ax):
    found = [text.get_position()[0] for text in ax.texts if text.get_text() == "ranks otherwise"]
    assert len(ax.patches) == len(found)
    return found


def test_the_metric_that_ranks_otherwise_is_shaded():
    ax = nudging.plot_dissociation(comparison())
    assert shaded(ax) == [0]
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_allclose(lines["CB"], [1, 0.360 / 0.453, 4.26e-4 / 1.93e-3, 0.121 / 0.447])
    written = [text.get_text() for text in ax.texts]
    assert {"0.679", "-0.00193", "-4.98e-05", "0.121"} <= set(written)
    ticks = [tick.get_text() for tick in ax.get_xticklabels()]
    assert ticks == ["the cosine", "the accuracy", "the nudge", "the decrease"]


def test_metrics_that_agree_are_not_shaded():
    assert shaded(nudging.plot_dissociation(comparison(cosine=[0.9, 0.6, 0.1]))) == []
    chosen = nudging.plot_dissociation(comparison(), metrics=["nudge", "accuracy"])
    assert shaded(chosen) == []
    assert [t.get_text() for t in chosen.get_xticklabels()] == ["the nudge", "the accuracy"]


def test_a_difference_within_two_standard_errors_is_a_tie():
    apart = np.array([[3.0, 3.0], [2.0, 2.0], [1.0, 1.0]])
    close = np.array([[1.0, 3.2], [2.2, 2.2], [0.1, 0.1]])  # 2.1 +- 1.1 against 2.2
    table = np.stack([apart, apart, close])
    assert find_disagreeing_metrics(table).tolist() == [False, False, False]
    close[0] = 1.0
    assert find_disagreeing_metrics(np.stack([apart, apart, close])).tolist() == [
        False,
        False,
        True,
    ]


def test_metrics_may_be_a_dimension_and_seeds_are_points():
    data = np.array(list(PUBLISHED.values())).T[..., None] * [0.99, 1.01]
    found = xr.Dataset(
        {"value": (("rule", "metric", "seed"), data)},
        coords={"rule": RULES, "metric": list(PUBLISHED), "seed": [0, 1]},
    )
    ax = nudging.plot_dissociation(found)
    assert shaded(ax) == [0]
    assert [t.get_text() for t in ax.get_xticklabels()] == list(PUBLISHED)
    assert len(ax.collections) == 6  # two seeds of three rules


def test_values_written_beside_an_axis_do_not_overlap():
    ax = nudging.plot_dissociation(comparison(accuracy=[0.36, 0.3601, 0.3602]))
    ax.figure.canvas.draw()
    renderer = ax.figure.canvas.get_renderer()
    boxes = [t.get_window_extent(renderer) for t in ax.texts if t.get_text() != "ranks otherwise"]
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[i + 1 :])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (comparison()[["cosine"]], "at least two metrics"),
        (comparison(cosine=[np.inf, 1, 1]), "finite values"),
        (comparison(cosine=[0, 0, np.nan]), "all zero or NaN"),
        (comparison().isel(rule=[0]), "two rules"),
        (comparison().expand_dims(layer=["a"]), "over rule and seed"),
    ],
)
def test_comparisons_that_cannot_be_drawn_are_refused(found, text):
    with pytest.raises(ValueError, match=text):
        nudging.plot_dissociation(found)


def test_unknown_metrics_are_refused():
    with pytest.raises(ValueError, match="`metrics`: expected some of cosine"):
        nudging.plot_dissociation(comparison(), metrics=["cosine", "nothing"])


def nudged(change, **more):
    return xr.Dataset({"loss_change": change, **more}, coords={"layer": LAYERS})


def test_bars_are_means_and_points_are_seeds():
    values = np.array([[-1.0, -2, -3], [-3.0, -4, 1]])
    found = nudged((("seed", "layer"), values)).assign_coords(seed=[0, 1])
    ax = nudging.plot_nudge(found)
    assert [bar.get_height() for bar in ax.patches] == [-2, -3, -1]
    points = np.concatenate([c.get_offsets()[:, 1] for c in ax.collections])
    np.testing.assert_allclose(sorted(points), sorted(values.ravel()))
    assert [t.get_text() for t in ax.get_xticklabels()] == LAYERS
    assert ax.get_yscale() == "linear"


def test_one_step_length_must_be_chosen_among_several():
    two = nudged((("layer", "eta"), np.array([[-1.0, -9], [-2, -9], [-3, -9]])))
    two = two.assign_coords(eta=[0.01, 0.1])
    with pytest.raises(ValueError, match=r"`eta`: expected one of 0.01, 0.1, got None"):
        nudging.plot_nudge(two)
    with pytest.raises(ValueError, match=r"`eta`: expected one of 0.01, 0.1, got 0.5"):
        nudging.plot_nudge(two, eta=0.5)
    ax = nudging.plot_nudge(two, eta=0.01)
    assert [bar.get_height() for bar in ax.patches] == [-1, -2, -3]
    assert "eta = 0.01" in ax.get_ylabel()
    assert "eta = 0.1" in nudging.plot_nudge(two.isel(eta=[1])).get_ylabel()


def test_rules_stand_side_by_side_with_errors_and_predictions():
    change = ("rule", "layer"), np.array([[-1.0, -2, -3], [-0.01, -0.02, -0.03]])
    found = nudged(change, loss_change_se=(change[0], abs(change[1])), predicted_change=change)
    ax = nudging.plot_nudge(found.assign_coords(rule=["a", "b"]))
    assert len({bar.get_x() for bar in ax.patches}) == 6
    assert ax.get_yscale() == "symlog"  # else the second would not be seen
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {"a", "b", "to first order"}


def test_alignment_over_layers_and_along_training():
    rows = np.array([[0.9, 0.5, 0.1], [0.8, 0.4, np.nan]])
    found = xr.Dataset(
        {"cosine": (("epoch", "layer"), rows)}, coords={"layer": LAYERS, "epoch": [1, 2]}
    )
    ax = nudging.plot_alignment(found)
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()[1:]}
    assert list(lines) == LAYERS
    np.testing.assert_array_equal(lines["blocks.1"], [0.1, np.nan])
    assert ax.get_xlabel() == "epoch"
    assert "gradient too small" in [t.get_text() for t in ax.get_legend().get_texts()]
    one = found.isel(epoch=0, drop=True).assign(cosine_sd=("layer", [0.1, 0.1, 0.1]))
    over = nudging.plot_alignment(one)
    np.testing.assert_array_equal(over.get_lines()[1].get_ydata(), rows[0])
    assert [t.get_text() for t in over.get_xticklabels()] == LAYERS


def test_alignment_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="got none"):
        nudging.plot_alignment(xr.Dataset())
    both = xr.DataArray(np.ones((2, 2, 1)), dims=("rule", "step", "layer"))
    with pytest.raises(ValueError, match="rule, step and epoch at most"):
        nudging.plot_alignment(xr.Dataset({"cosine": both}))
    with pytest.raises(ValueError, match="expected `loss_change` over layer"):
        nudging.plot_nudge(xr.Dataset())


@pytest.mark.parametrize(
    "values",
    [
        [[-3e-2, -2e-2, -1e-2], [1e-6, -2e-6, 3e-7], [-1e-3, 5e-4, 1e-4]],
        [[-3.6e-3, -2.4e-3, -1.3e-3], [-1.3e-4, -5.5e-5, -5.6e-5]],
        [[1e-12, -1e-3, 1e5]],
        [[-1e-7, -1e-3, -1e-1]],
    ],
)
def test_labels_on_both_sides_of_zero_keep_apart(values):
    found = nudged((("rule", "layer"), np.array(values)))
    ax = nudging.plot_nudge(found.assign_coords(rule=list("abc")[: len(values)]))
    assert ax.get_yscale() == "symlog"
    ax.figure.canvas.draw()
    low, high = ax.get_ylim()
    shown = [tick for tick in ax.yaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [tick.label1.get_window_extent() for tick in shown]
    assert 3 <= len(boxes) <= 10
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def test_a_block_without_credit_has_a_cross_and_its_place():
    ax = nudging.plot_nudge(nudged(("layer", np.array([np.nan, -1.0, -2.0]))))
    np.testing.assert_allclose(ax.collections[0].get_offsets(), [[0, 0]])
    assert ax.get_xlim()[0] < 0
    assert "no credit" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_epochs_without_a_reference_are_on_the_axis():
    rows = np.array([[0.9, 0.5, 0.1], [0.8, 0.4, 0.2], [np.nan] * 3])
    found = xr.Dataset(
        {"cosine": (("epoch", "layer"), rows)}, coords={"layer": LAYERS, "epoch": [1, 2, 3]}
    )
    ax = nudging.plot_alignment(found)
    assert ax.get_xlim()[1] > 3
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_what_is_missing_is_left_out_of_means_and_ranks():
    ax = nudging.plot_dissociation(comparison(cosine=[0.322, np.nan, 0.151]))
    assert shaded(ax) == []  # without CB the cosine agrees
    (missing,) = [text for text in ax.texts if text.get_text() == "n/a"]
    assert ax.get_ylim()[0] < missing.xy[1] < 0
    seeds = np.array([[3.0, 3.2, np.nan], [2.0, 2.1, 2.2], [1.0, 1.1, 1.2]])
    turned = seeds[[1, 0, 2]]
    assert find_disagreeing_metrics(np.stack([seeds, seeds, turned])).tolist() == [
        False,
        False,
        True,
    ]


def test_places_are_moved_apart_as_little_as_possible():
    # Five equal places spread around theirs; one that is far away stays.
    equal = _spread_apart(np.array([2.0, 2.0, 9.0, 2.0, 2.0, 2.0]), 0.5)
    np.testing.assert_allclose(equal, [1.0, 1.5, 9.0, 2.0, 2.5, 3.0])

    # Oracle: the constrained least squares problem, solved by a general method.
    places, gap = np.random.default_rng(4).uniform(0, 1, 7), 0.15
    order = np.argsort(places)
    solution = minimize(
        lambda y: ((y - places[order]) ** 2).sum(),
        places[order],
        constraints={"type": "ineq", "fun": lambda y: np.diff(y) - gap},
        options={"ftol": 1e-15},
    )
    np.testing.assert_allclose(_spread_apart(places, gap)[order], solution.x, atol=1e-6)
