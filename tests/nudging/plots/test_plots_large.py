"""Plots of deep networks with long names stay legible."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import nudging


def deep(depth, **dims):
    shape = (depth, *dims.values())
    values = np.random.default_rng(0).normal(size=shape)
    names = [f"encoder.transformer.blocks.{i}.mlp" for i in range(depth)]
    coords = {"layer": names} | {dim: range(size) for dim, size in dims.items()}
    variables = {name: (("layer", *dims), values) for name in ("cosine", "loss_change")}
    return xr.Dataset(variables, coords=coords)


@pytest.mark.parametrize("plot", [nudging.plot_nudge, nudging.plot_alignment])
@pytest.mark.parametrize("depth", [5, 24, 96])
def test_names_of_blocks_stand_apart(plot, depth):
    ax = plot(deep(depth))
    ax.figure.canvas.draw()
    labels = [label for label in ax.get_xticklabels() if label.get_text()]
    at = [ax.transData.transform((tick, 0))[0] for tick in ax.get_xticks()]
    high = labels[0].get_fontsize() * ax.figure.dpi / 72
    # Lines of text at 45 degrees: what lies between them is shorter than the distance by sqrt 2.
    assert np.diff(at).min() > high
    assert [label.get_text() for label in labels] == [
        f"encoder.transformer.blocks.{round(tick)}.mlp" for tick in ax.get_xticks()
    ]
    assert ax.get_window_extent().height > 0.4 * ax.figure.bbox.height


@pytest.mark.parametrize("depth", [5, 24, 96])
def test_the_legend_of_layers_fits_the_figure(depth):
    ax = nudging.plot_alignment(deep(depth, epoch=4))
    ax.figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    assert box.y0 > 0
    assert box.x1 <= ax.figure.bbox.x1
    assert len(ax.get_lines()) == depth + 1  # all layers, and zero
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[0] == "encoder.transformer.blocks.0.mlp"
    assert len(texts) == min(depth, -(-depth // -(-depth // 12)))


def test_bars_that_would_be_too_thin_are_lines_with_the_same_numbers():
    rng = np.random.default_rng(0)
    change, predicted = rng.normal(size=(2, 4, 48))
    names = [f"blocks.{i}" for i in range(48)]
    result = xr.Dataset(
        {
            "loss_change": (("rule", "layer"), change),
            "loss_change_se": (("rule", "layer"), np.full((4, 48), 0.25)),
            "predicted_change": (("rule", "layer"), predicted),
        },
        {"rule": list("abcd"), "layer": names},
    )
    ax = nudging.plot_nudge(result, ax=plt.subplots(figsize=(5, 4))[1], title="deep")
    assert not ax.patches
    assert ax.get_title() == "deep"

    lines = [line for line in ax.get_lines() if len(line.get_xdata()) == 48]
    np.testing.assert_array_equal([line.get_ydata() for line in lines[::2]], change)
    np.testing.assert_array_equal([line.get_ydata() for line in lines[1::2]], predicted)
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx((change[0] + 0.25).max())
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(legend) == ["a", "b", "c", "d", "to first order"]

    # With room there are bars, and a dash for each.
    wide = nudging.plot_nudge(result.isel(layer=slice(12)))
    heights = [patch.get_height() for patch in wide.patches]
    np.testing.assert_allclose(heights, change[:, :12].ravel())
    plt.close("all")
