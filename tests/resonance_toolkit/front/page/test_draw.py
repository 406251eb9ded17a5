"""Every verb's result is drawn, by what made it, with the numbers that it has."""

from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from resonance_toolkit._front.page.draw import draw
from tests.contract.test_contract import VERBS, make_data, make_model

# One row of the contract's table for each verb that leaves something to draw.
DRAWN = {
    name: VERBS[name]
    for name in (
        "probes.measure",
        "probes.evaluate",
        "probes.similarity",
        "probes.exits",
        "probes.exit_reliability",
        "probes.exit_map",
        "landscape.grid",
        "landscape.line",
        "landscape.plane",
        "landscape.trajectory",
        "landscape.curvature_map",
        "landscape.curvature by layer",
        "landscape.smoothness",
        "landscape.dilution",
        "gradients.Trace",
        "gradients.compare",
        "gradients.noise",
        "gradients.initial_norm",
        "gradients.reweight (layer)",
        "attention.capture",
        "attention.capture, maps",
        "attention.sinks",
        "attention.rollout",
        "nudging.nudge",
        "nudging.measure",
        "nudging.drift",
        "nudging.stability",
        "nudging.audit",
    )
}


@pytest.mark.parametrize("verb", DRAWN.values(), ids=DRAWN.keys())
def test_every_verb_has_a_picture(verb):
    before = dict(mpl.rcParams)
    figure = draw(verb(make_model(), make_data()))
    figure.draw_without_rendering()

    assert figure.axes
    assert not plt.get_fignums()  # no window, and none that stays in memory
    assert dict(mpl.rcParams) == before


def test_cosines_are_drawn_as_they_are():
    cosine = np.array([0.5, -0.25, np.nan])
    compared = xr.Dataset(
        {"cosine": ("layer", cosine)},
        {"layer": ["stem", "blocks.0", "head"]},
        {"made_by": "gradients.compare"},
    )
    ax = draw(compared).axes[0]
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), cosine[:2])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["stem", "blocks.0"]


def test_the_range_over_batches_is_a_bar():
    cosine = np.array([[0.5, -0.2], [0.1, 0.4]])
    compared = xr.Dataset(
        {"cosine": (("batch", "layer"), cosine)},
        {"layer": ["a", "b"]},
        {"made_by": "gradients.compare"},
    )
    ax = draw(compared).axes[0]
    np.testing.assert_allclose(ax.get_lines()[0].get_xdata(), cosine.mean(0))
    bars = np.array([segment[:, 0] for segment in ax.collections[0].get_segments()])
    np.testing.assert_allclose(bars, [[0.1, 0.5], [-0.2, 0.4]])


@pytest.mark.parametrize("n_layers", [1, 12, 200])
def test_any_number_of_layers_has_names_that_do_not_touch(n_layers):
    names = [f"a.model.with.long.names.of.its.layers.blocks.{i}.attn" for i in range(n_layers)]
    norms = {"gradient_norm": ("layer", np.arange(n_layers, dtype=float))}
    figure = draw(xr.Dataset(norms, {"layer": names}, {"made_by": "gradients.initial_norm"}))
    figure.draw_without_rendering()

    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    tops = sorted((box.y0, box.y1) for box in boxes)
    assert all(lower[1] <= upper[0] for lower, upper in pairwise(tops))
    assert figure.get_size_inches()[1] < 12


@pytest.mark.parametrize(
    "name", [r"$\frac{", "a$b$c", "\x00\x1b[31m", "", "<b>&amp;", "\u202e" * 9]
)
def test_no_name_stops_a_picture(name):
    norms = {"gradient_norm": ("layer", [1.0, 2.0], {"long_name": name, "units": name})}
    figure = draw(xr.Dataset(norms, {"layer": [name, "other"]}, {"made_by": name, "model": name}))
    figure.draw_without_rendering()


def test_names_that_differ_in_the_middle_alone_stay_apart():
    names = ["x" * 60 + letter + "y" * 60 for letter in "ab"]
    norms = {"loss_change": ("layer", [1.0, 2.0])}
    figure = draw(xr.Dataset(norms, {"layer": names}, {"made_by": "nudging.nudge"}))
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1.0, 2.0]


def test_nothing_to_draw_is_none():
    assert draw(xr.Dataset({"loss": 1.0})) is None


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match=r"`dataset`: expected an xarray.Dataset, got dict"):
        draw({})
