"""Plots of deep networks with long names stay legible."""

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
