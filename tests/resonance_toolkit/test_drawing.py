import inspect
from itertools import pairwise

import matplotlib as mpl
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import attention
import gradients
import landscape
import nudging
import probes
from resonance_toolkit import (
    colors_by_order,
    label_places,
    label_rows,
    legend_outside,
    thin_out,
    title_text,
    write_figure_title,
)

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def box_of(artist):
    return artist.get_window_extent()


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
@pytest.mark.parametrize("side", ["right", "bottom"])
def test_a_legend_is_inside_the_figure_and_outside_all_axes(layout, side):
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout=layout)
    for ax in axes.flat:
        ax.plot([0, 1], [0, 1], label="a curve of some length")
        ax.set_xlabel("optimizer updates")
        legend_outside(ax, side=side)
    figure.canvas.draw()

    for ax in axes.flat:
        legend = box_of(ax.get_legend())
        assert legend.x0 >= -1
        assert legend.y0 >= -1
        assert legend.x1 <= figure.bbox.width + 1
        assert legend.y1 <= figure.bbox.height + 1
        for other in axes.flat:
            covered = mpl.transforms.Bbox.intersection(legend, box_of(other.patch))
            assert covered is None or covered.width < 1 or covered.height < 1


def test_room_for_a_second_legend_is_not_taken_again():
    _, axes = plt.subplots(1, 2)
    widths = []
    for number in range(3):
        axes[0].plot([0, 1], [0, number], label=f"curve {number}")
        legend_outside(axes[0])
        widths.append(axes[0].get_position().width)
    assert widths[0] < axes[1].get_position().width
    assert widths[0] == pytest.approx(widths[2])


def test_axes_without_a_grid_give_room_too():
    figure = plt.figure()
    ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    ax.plot([0, 1], label="curve")
    legend_outside(ax)
    figure.canvas.draw()
    assert box_of(ax.get_legend()).x1 <= figure.bbox.width
    assert ax.get_position().y1 == pytest.approx(0.9)


def test_nothing_to_tell_needs_no_legend():
    _, ax = plt.subplots()
    ax.plot([0, 1])
    assert legend_outside(ax) is None
    assert ax.get_legend() is None


@pytest.mark.parametrize("n", [1, 2, 12, 48])
def test_colours_differ_and_grow_darker(n):
    colors = colors_by_order(n)
    assert len(set(colors)) == n

    # Luminance as of CIE, from linear light.
    red_green_blue = [mpl.colors.to_rgb(color) for color in colors]
    linear = [
        [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        for rgb in red_green_blue
    ]
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear]
    assert light == sorted(light, reverse=True)


@pytest.mark.parametrize("n", [1, 5, 48, 400])
def test_labels_of_many_layers_keep_apart(n):
    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    label_places(ax, [f"encoder.layers.{i}" for i in range(n)])
    figure.canvas.draw()
    places = ax.get_xticks()
    assert len(places) >= min(n, 2)
    if len(places) > 1:
        inches = ax.transData.transform([(places[0], 0), (places[1], 0)])[:, 0] / figure.dpi
        assert inches[1] - inches[0] > 0.13  # a line of small letters
    for place, text in zip(places, ax.get_xticklabels(), strict=True):
        assert text.get_text() == f"encoder.layers.{place}"


def test_thinning_out_keeps_both_ends():
    assert thin_out(3, 12) == [0, 1, 2]
    assert thin_out(48, 2) == [0, 47]
    assert thin_out(48, 1) == [0]


def test_titles_say_what_made_a_result():
    attributes = {"made_by": "nudging.nudge", "model": "ViT", "n_samples": 1, "seed": 0}
    result = xr.Dataset(attrs=attributes)
    assert title_text(True, result) == "nudging.nudge of ViT, 1 sample, seed 0"
    assert title_text(True, result.assign_coords(seed=[0, 1])) == "nudging.nudge of ViT, 1 sample"
    assert title_text("mine", result) == "mine"
    assert title_text(False, result) == ""
    assert title_text(True, xr.Dataset()) == ""
    assert title_text(True, xr.Dataset(attrs={"n_samples": "none", "model": "ViT"})) == "ViT"

    figure, axes = plt.subplots(1, 2)
    write_figure_title(axes, True, result)
    assert figure.get_suptitle() == "nudging.nudge of ViT, 1 sample, seed 0"


@pytest.mark.parametrize("package", [attention, gradients, landscape, nudging, probes])
def test_every_plot_has_a_title_on_request_alone(package):
    plots = [getattr(package, name) for name in package.__all__ if name.startswith("plot_")]
    assert plots
    for plot in plots:
        title = inspect.signature(plot).parameters["title"]
        assert title.default is False, plot
        assert title.kind is inspect.Parameter.KEYWORD_ONLY, plot


def test_names_of_rows_are_thinned_out_where_axes_are_low():
    names = [f"blocks.{i}" for i in range(48)]
    for height, is_thinned in ((3, True), (12, False)):
        _, ax = plt.subplots(figsize=(4, height))
        label_rows(ax, names)
        ax.figure.canvas.draw()
        written = [label.get_text() for label in ax.get_yticklabels()]
        assert (len(written) < 48) == is_thinned
        assert written == [names[round(tick)] for tick in ax.get_yticks()]
        boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
        assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))
        assert ax.get_ylim() == (47.5, -0.5)
        plt.close(ax.figure)


def test_entries_below_narrow_axes_stand_below_one_another():
    for width, n_columns in ((3, 1), (16, 3)):
        _, ax = plt.subplots(figsize=(width, 3))
        for index in range(3):
            ax.plot([0, 1], label=f"a curve with a name of some length, {index}")
        legend = legend_outside(ax, side="bottom", ncols=3)
        assert legend._ncols == n_columns
        plt.close(ax.figure)
