"""The plots of `attention` show the numbers of the Dataset."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr

import attention
from tests.helpers.small_vit import small_vit

mpl.use("agg")


@pytest.fixture
def trace():
    model, x = small_vit(), torch.randn(3, 3, 32, 32)
    pieces = [attention.capture(model, x * scale, maps=True) for scale in (1, 2)]
    steps = xr.Variable("step", [0, 10], {"long_name": "optimizer updates"})
    yield xr.concat(pieces, dim=steps, combine_attrs="drop_conflicts")
    plt.close("all")


def test_maps_lie_on_the_grid_of_patches(trace):
    images = np.random.default_rng(0).normal(size=(3, 3, 32, 32))
    axes = attention.plot_maps(trace, images, sample=1)
    assert axes.shape == (2, 3)
    for row, layer in np.ndindex(2, 2):
        picture, weights = axes[row, layer + 1].get_images()
        expected = trace["weight"].isel(step=row, sample=1, layer=layer).mean("head")
        np.testing.assert_allclose(weights.get_array(), expected.values.reshape(4, 4))
        assert tuple(weights.get_extent()) == tuple(picture.get_extent())
        largest = float(trace["weight"].isel(sample=1).mean("head").max())
        assert weights.get_clim() == (0, pytest.approx(largest))
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["step 0", "step 10"]
    assert [ax.get_title() for ax in axes[0, 1:]] == ["blocks.0.attn", "blocks.1.attn"]


def test_rows_of_two_dimensions_are_named_as_they_are_drawn(trace):
    trainings = xr.Variable("training", ["plain", "helped", "late"])
    scaled = [trace.assign(weight=trace["weight"] * factor) for factor in (1, 2, 3)]
    both = xr.concat(scaled, dim=trainings, combine_attrs="drop_conflicts")
    axes = attention.plot_maps(both)
    for ax, (training, step) in zip(axes[:, 0], np.ndindex(3, 2), strict=True):
        at = both["weight"].isel(training=training, step=step, sample=0, layer=0).mean("head")
        np.testing.assert_allclose(ax.get_images()[0].get_array(), at.values.reshape(4, 4))
        assert ax.get_ylabel() == f"{trainings.values[training]}, step {both.step.values[step]}"


def test_maps_that_keep_the_class_token_are_drawn_without_it():
    seen = attention.capture(small_vit(), torch.randn(1, 3, 32, 32), maps=True, keys="all")
    axes = attention.plot_maps(seen)
    expected = seen["weight"].isel(sample=0, layer=0).mean("head").values[1:]
    np.testing.assert_allclose(axes[0, 0].get_images()[0].get_array(), expected.reshape(4, 4))
    plt.close("all")


def test_statistics_are_means_along_the_steps(trace):
    axes = attention.plot_statistics(trace)
    assert axes.shape == (2, 2)
    for ax, name in zip(axes.flat, ("entropy", "coverage", "peak", "gini"), strict=True):
        (line,) = ax.get_lines()
        np.testing.assert_allclose(line.get_xdata(), [0, 10])
        expected = trace[name].mean(["sample", "layer", "head"])
        np.testing.assert_allclose(line.get_ydata(), expected)
        assert ax.get_xlabel() == "optimizer updates"
        assert trace[name].attrs["long_name"].split()[0] in ax.get_ylabel()
    (ax,) = attention.plot_statistics(trace, names=["peak"], x="layer", hue="step").flat
    assert len(ax.get_lines()) == 2


def test_the_legend_names_the_curves_once_for_all_panels(trace):
    trainings = xr.Variable("training", ["plain", "asymmetric"], {"long_name": "kind of training"})
    both = xr.concat([trace, 2 * trace], dim=trainings)
    axes = attention.plot_statistics(both, hue="training")
    (legend,) = axes.flat[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "asymmetric"]
    assert legend.get_title().get_text() == "kind of training"
    assert all(ax.get_legend() is None for ax in axes.flat)
    for handle, line, factor in zip(
        legend.get_lines(), axes.flat[2].get_lines(), (1, 2), strict=True
    ):
        assert handle.get_color() == line.get_color()
        expected = factor * trace["peak"].mean(["sample", "layer", "head"])
        np.testing.assert_allclose(line.get_ydata(), expected)

    own = plt.subplots(1, 4, squeeze=False)[1]  # where it may stand outside is not ours to say
    attention.plot_statistics(both, hue="training", axes=own)
    assert not own[0, 0].figure.legends
    # Beside the last panel of the row, where it covers none.
    names = [text.get_text() for text in own[0, 3].get_legend().get_texts()]
    assert names == ["plain", "asymmetric"]
    assert own[0, 0].get_legend() is None


def test_of_many_layers_some_are_named_and_colours_tell_them_by_order():
    layers = [f"blocks.{i}.attn" for i in range(48)]
    entropy = np.random.default_rng(0).random((5, 48))
    deep = xr.Dataset(
        {"entropy": (("step", "layer"), entropy)}, {"step": range(5), "layer": layers}
    )
    own = plt.subplots(figsize=(5, 4))[1]
    attention.plot_statistics(deep, names=["entropy"], hue="layer", axes=np.array([own]))
    assert len({line.get_color() for line in own.get_lines()}) == 48
    legend = own.get_legend()
    assert len(legend.get_texts()) == 12
    assert legend.get_window_extent().x0 >= own.get_window_extent().x1

    over_layers = attention.plot_statistics(deep.mean("step"), names=["entropy"], x="layer")[0, 0]
    over_layers.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in over_layers.get_xticklabels()]
    assert 2 < len(boxes) < 48
    written = [label.get_text() for label in over_layers.get_xticklabels()]
    assert written == [layers[round(tick)] for tick in over_layers.get_xticks()]


def test_what_cannot_be_drawn_is_named(trace):
    with pytest.raises(ValueError, match="`maps`: expected `weight` without `query`"):
        attention.plot_maps(trace.drop_vars("weight"))
    windows = trace.assign_coords(n_windows=("layer", [4, 1]))
    with pytest.raises(ValueError, match=r"form an image, but not in layer 'blocks\.0\.attn'"):
        attention.plot_maps(windows)
    one = plt.subplots(squeeze=False)[1]
    with pytest.raises(ValueError, match=r"`axes`: expected shape \(2, 2\), got \(1, 1\)"):
        attention.plot_maps(trace, axes=one)
    for shape in ((2, 9, 5), (2, 5, 8, 8), (0, 3, 8, 8)):
        with pytest.raises(
            ValueError, match=r"`images`: expected \(sample, channel, height, width"
        ):
            attention.plot_maps(trace, np.zeros(shape))
    with pytest.raises(ValueError, match=r"`names`: expected some of .*; got 'height'"):
        attention.plot_statistics(trace, names=["height"])
    with pytest.raises(ValueError, match="`names`: expected at least one, got none"):
        attention.plot_statistics(trace, names=[])
    with pytest.raises(ValueError, match="`axes`: expected 4, got 1"):
        attention.plot_statistics(trace, axes=one)
    with pytest.raises(ValueError, match="`x` and `hue`: expected dimensions of 'entropy'"):
        attention.plot_statistics(trace, hue="training")
