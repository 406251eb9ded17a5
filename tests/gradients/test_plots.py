"""Pictures of traces, read back from the Axes."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr

import gradients
from tests.helpers.small_network import make_batch, make_network, two_losses


def make_trace(n=8):
    torch.manual_seed(0)
    model = make_network()
    trace = gradients.Trace(model)
    for step in range(n):
        trace.backward(*two_losses(model, *make_batch(seed=step)))
    return trace.to_dataset()


def test_plot_trace_draws_the_cosine_and_its_running_mean():
    trace = make_trace()
    ax = gradients.plot_trace(trace, smooth=3)
    zero, smooth, raw = ax.get_lines()
    assert list(zero.get_ydata()) == [0, 0]
    np.testing.assert_array_equal(raw.get_ydata(), trace["cosine_total"])
    values = trace["cosine_total"].values
    np.testing.assert_allclose(
        smooth.get_ydata()[1:-1], np.convolve(values, np.ones(3) / 3, "valid")
    )
    both = xr.concat([trace, -trace], xr.Variable("architecture", ["ViT", "CNN"]))
    ax = gradients.plot_trace(both)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ViT", "CNN"]
    with pytest.raises(ValueError, match="at most one dimension"):
        gradients.plot_trace(both.expand_dims(seed=2))
    plt.close("all")


def test_plot_layers_draws_every_layer_and_step():
    trace = make_trace()
    ax = gradients.plot_layers(trace)
    drawn = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(drawn, np.nan), trace["cosine"].values.T)
    assert trace["layer"].values[0] == ""
    labels = ["(the model's own)", *trace["layer"].values[1:]]
    assert [t.get_text() for t in ax.get_yticklabels()] == labels
    with pytest.raises(ValueError, match=r"expected `cosine \(step, layer\)`"):
        gradients.plot_layers(trace.isel(step=0))
    plt.close("all")


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 1), (3, 48)])
def test_the_map_is_filled_however_few_there_are(shape):
    n_steps, n_layers = shape
    cosine = np.linspace(-1, 1, n_steps * n_layers).reshape(shape)
    layers = [f"blocks.{i}.attn" for i in range(n_layers)]
    steps = np.array([0, 10, 40, 50, 60])[:n_steps]
    trace = xr.Dataset({"cosine": (("step", "layer"), cosine)}, {"step": steps, "layer": layers})
    own = plt.subplots(figsize=(4, 3))[1]
    gradients.plot_layers(trace, ax=own, title="a title")

    mesh = own.collections[0]
    np.testing.assert_array_equal(mesh.get_array(), cosine.T)
    corners = mesh.get_coordinates()
    np.testing.assert_array_equal(corners[:, 0, 1], np.arange(n_layers + 1) - 0.5)
    # A step's cell reaches half-way to its neighbours.
    edges = {1: [-0.5, 0.5], 3: [-5, 5, 25, 55], 5: [-5, 5, 25, 45, 55, 65]}[n_steps]
    np.testing.assert_array_equal(corners[0, :, 0], edges)
    assert own.get_title() == "a title"

    own.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in own.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))
    plt.close("all")


def test_plot_dynamics_draws_losses_and_norms():
    trace = make_trace()
    plain = trace[["loss_main", "gradient_norm"]]
    losses, norms = gradients.plot_dynamics({"plain": plain, "asymmetric": trace})
    labels = [line.get_label() for line in losses.get_lines()]
    assert labels == ["plain, main", "asymmetric, main", "asymmetric, auxiliary"]
    np.testing.assert_array_equal(losses.get_lines()[2].get_ydata(), trace["loss_aux"])
    np.testing.assert_array_equal(norms.get_lines()[0].get_ydata(), trace["gradient_norm"])
    with pytest.raises(ValueError, match="'x': expected `loss_main` and `gradient_norm"):
        gradients.plot_dynamics({"x": trace[["cosine"]]})
    plt.close("all")
