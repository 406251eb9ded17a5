import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib import pyplot as plt
from torch import nn

import gradients

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def compare(n_losses):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, n_losses))
    outputs = model(torch.randn(5, 3))
    losses = {f"loss {i}": outputs[:, i].square().mean() for i in range(n_losses)}
    return gradients.compare(model, losses)


def cells_of(ax):
    (mesh,) = [m for m in ax.collections if isinstance(m, mpl.collections.QuadMesh)]
    return mesh, np.ma.filled(mesh.get_array(), np.nan)


@pytest.mark.parametrize("n_losses", [3, 12, 14])
def test_a_matrix_of_cosines(n_losses):
    agreement = compare(n_losses)
    ax = gradients.plot_objectives(agreement)

    mesh, cells = cells_of(ax)
    np.testing.assert_array_equal(cells, agreement["cosine_total"])
    assert mesh.get_clim() == (-1, 1)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == list(agreement["objective"].values)

    written = len(ax.texts)
    assert written == (n_losses**2 if n_losses <= 12 else 0)


def test_two_losses_and_one_layer():
    agreement = compare(2)
    total = agreement["cosine_total"].item()
    _, cells = cells_of(gradients.plot_objectives(agreement))
    np.testing.assert_array_equal(cells, [[1, total], [total, 1]])

    ax = gradients.plot_objectives(agreement, layer="0")
    _, cells = cells_of(ax)
    assert cells[0, 1] == agreement["cosine"].sel(layer="0").item()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["loss 0", "loss 1"]

    with pytest.raises(ValueError, match=r"`layer`"):
        gradients.plot_objectives(agreement, layer="9")
    with pytest.raises(ValueError, match=r"`agreement`"):
        gradients.plot_objectives(xr.Dataset())


def test_means_over_steps_with_their_spread():
    names = ["a", "b", "c"]
    cosine = np.full((4, 3, 3), np.nan)
    cosine[:, 0, 1] = [0.1, 0.3, np.nan, 0.2]
    trace = xr.Dataset(
        {"cosine_total": (("step", "objective", "other_objective"), cosine)},
        coords={"objective": names, "other_objective": names},
    )
    ax = gradients.plot_objectives(trace)
    _, cells = cells_of(ax)
    assert cells[0, 1] == pytest.approx(0.2)
    assert np.isnan(cells).sum() == 8
    assert [text.get_text() for text in ax.texts] == [f"0.20\n± {np.std([0.1, 0.3, 0.2]):.2f}"]


def test_noise_of_every_layer_and_of_all_together():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    data = torch.randn(40, 3), torch.arange(40) % 2

    def losses(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        return loss, model(x).square().mean()

    noise = gradients.noise(model, data, losses, batch_size=10, resamples=50)
    for variable in ("mean", "variance"):
        ax = gradients.plot_noise(noise, variable=variable, title=True)
        expected = [noise[f"{variable}_total"], *noise[variable]]
        points = ax.get_lines()[0]
        np.testing.assert_allclose(points.get_xdata(), expected)

        (bars,) = ax.containers[0][2]
        ends = np.array([segment[:, 0] for segment in bars.get_segments()])
        low = [noise[f"{variable}_total_low"], *noise[f"{variable}_low"]]
        high = [noise[f"{variable}_total_high"], *noise[f"{variable}_high"]]
        np.testing.assert_allclose(ends, np.array([low, high]).T)
        assert [label.get_text() for label in ax.get_yticklabels()] == [
            "all layers together",
            "0",
            "2",
        ]
        assert ax.get_title() == "gradients.noise of Sequential, 40 samples, seed 0"

    with pytest.raises(ValueError, match=r"`variable`"):
        gradients.plot_noise(noise, variable="noise_scale")
    with pytest.raises(ValueError, match=r"`noise`"):
        gradients.plot_noise(xr.Dataset())


def make_noise_scale(n_layers):
    values = np.linspace(10, 1000, 2 * (n_layers + 1)).reshape(2, -1)
    values[0, 1] = np.inf
    variables = {}
    for end, factor in (("", 1.0), ("_low", 0.5), ("_high", 2.0)):
        variables[f"noise_scale{end}"] = (("objective", "layer"), values[:, 1:] * factor)
        variables[f"noise_scale_total{end}"] = ("objective", values[:, 0] * factor)
    variables["noise_scale_low"][1][0, 0] = 7.0
    layers = [f"blocks.{i}" for i in range(n_layers)]
    return xr.Dataset(variables, coords={"objective": ["main", "auxiliary"], "layer": layers})


@pytest.mark.parametrize("n_layers", [1, 12, 48])
def test_noise_scales_by_loss_with_infinite_ones(n_layers):
    scale = make_noise_scale(n_layers)
    ax = gradients.plot_noise(scale)
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["main", "auxiliary"]

    main, auxiliary = (container[0].get_xdata() for container in ax.containers)
    np.testing.assert_allclose(auxiliary[1:], scale["noise_scale"].sel(objective="auxiliary"))
    assert np.isnan(main).tolist() == [False, True] + [False] * (n_layers - 1)

    # Numbers are written out, and not as powers of ten, which lie on one another.
    ax.figure.canvas.draw()
    labels = [tick.label1.get_text() for tick in ax.xaxis.get_major_ticks()]
    assert all(float(label) > 0 for label in labels if label)
    assert not any(tick.label1.get_text() for tick in ax.xaxis.get_minor_ticks())

    # The infinite one: a triangle at the edge, and a line from the lower end to it.
    (triangle,) = [c for c in ax.collections if isinstance(c, mpl.collections.PathCollection)]
    edge = triangle.get_offsets()[0, 0]
    assert edge > scale["noise_scale_total_high"].sel(objective="main")
    segments = [s for c in ax.collections if hasattr(c, "get_segments") for s in c.get_segments()]
    ends = [segment[:, 0].tolist() for segment in segments if len(segment) == 2]
    assert [7.0, edge] in ends
