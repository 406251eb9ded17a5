import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib import pyplot as plt
from torch import nn

import probes

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def make_branches(n_layers, n_branches, n_trained=1):
    generator = np.random.default_rng(0)
    accuracy = generator.uniform(size=(n_layers, n_branches))
    return xr.Dataset(
        {
            "accuracy": (("layer", "branch"), accuracy, {"long_name": "accuracy"}),
            "loss": (("layer", "branch"), 3 - accuracy, {"long_name": "loss"}),
        },
        coords={
            "layer": [f"blocks.{i}" for i in range(n_layers)],
            "branch": range(n_branches),
            "trained": ("branch", np.arange(n_branches) >= n_branches - n_trained),
        },
        attrs={"made_by": "probes.Probe.evaluate", "model": "ViT", "n_samples": 7},
    )


@pytest.mark.parametrize("n_layers", [1, 12, 48])
@pytest.mark.parametrize("variable", ["accuracy", "loss"])
def test_every_branch_is_a_dot_and_every_kind_a_mean(n_layers, variable):
    branches = make_branches(n_layers, 20)
    ax = probes.plot_branches(branches, variable=variable, title=True)

    static, active = branches[variable][:, :-1], branches[variable][:, -1]
    static_line, active_line = ax.get_lines()
    np.testing.assert_allclose(static_line.get_ydata(), static.mean("branch"))
    np.testing.assert_allclose(active_line.get_ydata(), active)
    (dots,) = ax.collections
    x, y = dots.get_offsets().T
    np.testing.assert_allclose(y, static.values.ravel())
    np.testing.assert_array_equal(np.round(x), np.repeat(np.arange(n_layers), 19))

    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "static branches (19), and their mean",
        "active branches",
    ]
    assert ax.get_title() == "probes.Probe.evaluate of ViT, 7 samples"
    assert ax.get_ylabel() == variable


def test_seeds_are_further_dots():
    runs = [make_branches(3, 2), make_branches(3, 2) + 1]
    joined = xr.concat(runs, dim=xr.Variable("seed", [0, 1]))
    ax = probes.plot_branches(joined)
    np.testing.assert_allclose(
        ax.get_lines()[0].get_ydata(), joined["accuracy"].isel(branch=0).mean("seed")
    )
    assert [len(dots.get_offsets()) for dots in ax.collections] == [6, 6]


def test_a_layer_where_nothing_counted_is_a_gap():
    branches = make_branches(3, 4)
    branches["accuracy"][1] = np.nan
    static_line, _ = probes.plot_branches(branches).get_lines()
    assert np.isnan(static_line.get_ydata()).tolist() == [False, True, False]


def test_what_a_fit_gives_has_its_interval():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    data = torch.randn(30, 4), torch.arange(30) % 3
    with probes.attach(model, "*", loss="ce", listen_only=True) as probe:
        fit = probe.fit(data)

    ax = probes.plot_branches(fit)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), fit["accuracy"])
    (bars,) = ax.collections
    for segment, low, high in zip(
        bars.get_segments(), fit["accuracy_low"], fit["accuracy_high"], strict=True
    ):
        np.testing.assert_allclose(segment[:, 1], [low, high])
    assert "95% interval" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_what_the_probe_measured_can_be_drawn_as_it_is():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    probe = probes.attach(model, "*", n=3)
    model(x)
    measured = probe.measure(y)
    _, own_axes = plt.subplots()
    assert probes.plot_branches(measured, ax=own_axes) is own_axes
    assert len(own_axes.get_lines()) == len(set(measured["trained"].values.tolist()))


def test_other_datasets_are_refused():
    with pytest.raises(ValueError, match=r"`branches`: expected `accuracy` over layer"):
        probes.plot_branches(xr.Dataset())
    with pytest.raises(ValueError, match=r"`variable`"):
        probes.plot_branches(make_branches(1, 1), variable="los")


def make_arms(n_seeds):
    generator = np.random.default_rng(1)
    values = generator.uniform(size=(2, n_seeds, 5))
    values[:, :, 0] = np.nan  # as the training loss has it
    return xr.Dataset(
        {"train_loss": (("arm", "seed", "step"), values, {"long_name": "training loss"})},
        coords={"arm": ["plain", "branches"], "seed": range(n_seeds), "step": range(0, 50, 10)},
    )


def test_arms_are_means_with_seeds_and_a_range():
    response = make_arms(3)
    ax = probes.plot_arms(response, variable="train_loss")

    values = response["train_loss"].values[:, :, 1:]
    means = [line for line in ax.get_lines() if line.get_linewidth() == 2]
    for line, arm in zip(means, values, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [10, 20, 30, 40])
        np.testing.assert_allclose(line.get_ydata(), arm.mean(0))
    assert len(ax.get_lines()) == 2 * (1 + 3)

    for band, arm in zip(ax.collections, values, strict=True):
        outline = band.get_paths()[0].vertices
        assert outline[:, 1].min() == pytest.approx(arm.min())
        assert outline[:, 1].max() == pytest.approx(arm.max())
    assert ax.get_legend().get_title().get_text() == "mean and range of 3 seeds"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["plain", "branches"]


def test_arms_of_one_seed_have_no_range():
    for response in (make_arms(1), make_arms(1).isel(seed=0)):
        ax = probes.plot_arms(response, variable="train_loss")
        assert len(ax.get_lines()) == 2
        assert not ax.collections


def test_arms_need_their_dimensions():
    with pytest.raises(ValueError, match=r"`response`: expected `accuracy` over arm"):
        probes.plot_arms(make_arms(1))
