"""`grid(method="adaptive")`: true error below the tolerance, and honest where it cannot be."""

import numpy as np
import pytest
import sklearn.datasets as sklearn
import torch
import xarray as xr
from torch import nn
from torch.nn import functional as F

import landscape
from landscape._evaluation.adaptive import _is_smooth
from tests.helpers.systems import needs_posix
from tests.landscape.evaluation.test_long_runs import counted, kill_half_way
from tests.landscape.evaluation.test_long_runs import make as make_small


def digits(n=60):
    pixels, labels = sklearn.load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 8 - 1
    return x[:n], torch.from_numpy(labels)[:n]


def mlp(activation=nn.ReLU):
    layers = [nn.Linear(64, 48), activation(), nn.Linear(48, 48), activation()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(48, 10))


def cnn(norm=False):
    layers, inputs = [], 1
    for outputs in (6, 8):
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, stride=2))
        layers += [nn.BatchNorm2d(outputs)] if norm else []
        layers.append(nn.ReLU())
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 4, 10))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return (x + self.inner(x)).relu()


def resnet():
    stem = nn.Conv2d(1, 6, 3, stride=2, padding=1)
    return nn.Sequential(stem, nn.ReLU(), Residual(6), Residual(6), nn.Flatten(), nn.Linear(96, 10))


def vit():
    import timm

    settings = {"embed_dim": 16, "depth": 2, "num_heads": 2, "in_chans": 1, "num_classes": 10}
    return timm.models.VisionTransformer(img_size=8, patch_size=4, **settings)


def trained(model, steps=100):
    x, y = digits(600)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = slice(step % 6 * 100, step % 6 * 100 + 100)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


NETWORKS = {
    "MLP": mlp,
    "MLP trained": lambda: trained(mlp()),
    "tanh MLP trained": lambda: trained(mlp(nn.Tanh)),
    "GELU MLP trained": lambda: trained(mlp(nn.GELU)),
    "CNN": cnn,
    "CNN trained": lambda: trained(cnn()),
    "batch-norm CNN trained": lambda: trained(cnn(norm=True)),
    "ViT": vit,
    "ViT trained": lambda: trained(vit()),
    "ResNet": resnet,
    "ResNet trained": lambda: trained(resnet()),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_true_error_is_below_the_tolerance(name):
    torch.manual_seed(1)
    model = NETWORKS[name]()
    exact = landscape.grid(model, digits(), samples=60)
    quick = landscape.grid(model, digits(), samples=60, method="adaptive", tolerance=1e-2)
    spread = exact["loss"].max() - exact["loss"].min()
    error = abs(quick["loss"] - exact["loss"]).max() / spread
    assert error < 1e-2
    assert 0 < quick.attrs["error_estimate"] <= 1e-2
    assert quick.attrs["n_evaluations"] < 0.4 * 2601
    assert quick.attrs["n_evaluations"] == quick["evaluated"].sum()
    # Evaluated points are exact, and the model is one of them.
    known = quick["evaluated"]
    xr.testing.assert_equal(quick["loss"].where(known), exact["loss"].where(known))
    xr.testing.assert_equal(quick["accuracy"].where(known), exact["accuracy"].where(known))
    assert known.sel(alpha=0, beta=0)
    assert abs(quick["loss_se"] - exact["loss_se"]).max() < 0.05 * exact["loss_se"].max()
    # Margins are interpolated, so that the accuracy map is no blur of steps.
    assert abs(quick["accuracy"] - exact["accuracy"]).mean() < 0.02


def test_a_chaotic_network_falls_back_to_exact():
    torch.manual_seed(0)
    layers = []
    for _ in range(12):
        layers += [nn.Linear(64, 64), nn.Tanh()]
        nn.init.normal_(layers[-2].weight, std=2.5 / 8)
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    settings = {"samples": 60, "size": 31}
    exact = landscape.grid(model, digits(), **settings)
    quick = landscape.grid(model, digits(), method="adaptive", **settings)
    assert quick["evaluated"].all()
    assert quick.attrs["error_estimate"] == 0
    np.testing.assert_array_equal(quick["loss"], exact["loss"])


def test_non_finite_values_fall_back_to_exact():
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.ones_(model.weight)

    def half(outputs, targets):
        return outputs.clamp(min=-1).add(1).log().mean()  # log(0) beyond a line

    data = torch.ones(2, 2).double(), torch.ones(2, 1).double()
    axes = [{"weight": torch.tensor([[2.0, 0]])}, {"weight": torch.tensor([[0, 2.0]])}]
    found = landscape.grid(
        model, data, loss=half, directions=axes, samples=2, size=15, method="adaptive"
    )
    assert found["evaluated"].all()
    assert found.attrs["n_non_finite"] > 0


@pytest.mark.parametrize("size", [2, (2, 9), 5])
def test_few_points_are_all_evaluated(size):
    settings = {"samples": 12, "size": size}
    exact = landscape.grid(*make_small(), **settings)
    quick = landscape.grid(*make_small(), method="adaptive", **settings)
    assert quick["evaluated"].all()
    np.testing.assert_array_equal(quick["loss"], exact["loss"])


def test_metrics_are_known_where_evaluated_and_nowhere_else():
    torch.manual_seed(0)
    model = mlp(nn.Tanh)
    found = landscape.grid(
        model,
        digits(),
        samples=60,
        size=31,
        method="adaptive",
        tolerance=0.1,
        metrics={"size": lambda outputs, targets: outputs.abs().mean(1)},
    )
    assert not found["evaluated"].all()
    np.testing.assert_array_equal(found["size"].notnull(), found["evaluated"])


@needs_posix
def test_a_killed_adaptive_grid_goes_on_where_it_was(tmp_path):
    model, data = make_small()
    kwargs = {"loss": counted, "samples": 12, "size": 7, "method": "adaptive"}
    whole = landscape.grid(model, data, **kwargs)
    kill_half_way(tmp_path / "grid", after=30, method="adaptive")
    resumed = landscape.grid(model, data, checkpoint=tmp_path / "grid", **kwargs)
    xr.testing.assert_identical(resumed, whole)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp(nn.Tanh)

    def forward(self, x):
        return self.inner(x), x.sum()


def of_first(outputs, targets):
    return F.cross_entropy(outputs[0], targets, reduction="none")


def of_parts(model, x, y):
    return F.cross_entropy(model[3:](model[:3](x)), y)  # never calls the model as a whole


def of_some(outputs, targets):
    return F.cross_entropy(outputs, targets.clamp(min=0), reduction="none") * (targets >= 0)


def one_output():
    return nn.Sequential(mlp(nn.Tanh), nn.Linear(10, 4), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("build", "loss", "classifies"),
    [
        (Pair, of_first, False),
        (one_output, lambda o, t: F.softplus(-o[:, 0] * (t - 4.5)), False),
        (lambda: mlp(nn.Tanh), of_parts, False),
        (lambda: mlp(nn.Tanh), of_some, True),
    ],
    ids=["a pair of outputs", "one output", "no output", "a target that is no class"],
)
def test_whole_targets_need_not_be_classes_of_the_outputs(build, loss, classifies):
    torch.manual_seed(0)
    x, y = digits()
    y[::3] = -1 if loss is of_some else y[::3]
    settings = {"loss": loss, "samples": 60, "size": 31, "tolerance": 0.05}
    model = build()
    exact = landscape.grid(model, (x, y), **settings)
    quick = landscape.grid(model, (x, y), method="adaptive", **settings)
    assert not quick["evaluated"].all()
    spread = exact["loss"].max() - exact["loss"].min()
    assert abs(quick["loss"] - exact["loss"]).max() < 0.05 * spread
    assert quick["accuracy"].notnull().all() == classifies
    assert exact["accuracy"].notnull().all() == classifies


def test_a_seed_may_be_negative():
    found = landscape.grid(mlp(), digits(), samples=60, size=31, seed=-1, method="adaptive")
    assert 0 < found.attrs["error_estimate"] <= 1e-2


class OfPixels(nn.Module):
    """A class for each of four positions of the digits."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 12))

    def forward(self, x):
        return self.body(x.flatten(1)).reshape(len(x), 3, 4)


@pytest.mark.parametrize("n_samples", [8, 600])
def test_the_accuracy_of_positions_is_near_the_truth_or_left_out(n_samples):
    torch.manual_seed(0)
    x = digits()[0].flatten(1).repeat(10, 1)
    x += 0.3 * torch.randn_like(x)
    model = OfPixels()
    with torch.no_grad():
        y = (model(x) + 0.05 * torch.randn(len(x), 3, 4)).argmax(1)
    settings = {"samples": n_samples, "size": 31, "tolerance": 0.05}
    exact = landscape.grid(model, (x, y), **settings)
    quick = landscape.grid(model, (x, y), method="adaptive", **settings)

    known = quick["evaluated"].astype(bool)
    assert not known.all()
    xr.testing.assert_equal(quick["accuracy"].where(known), exact["accuracy"].where(known))
    assert not abs(quick["accuracy"] - exact["accuracy"]).max() > 0.04
    if n_samples == 8:  # 32 positions, so that the accuracy is one of 33 steps
        assert quick["accuracy"].where(~known).isnull().all()


def test_accuracies_that_predict_one_another_are_interpolated():
    generator = np.random.default_rng(0)
    points = generator.uniform(-1, 1, (120, 2))
    smooth = 0.5 + 0.4 * np.sin(points[:, 0]) * np.cos(points[:, 1])
    assert _is_smooth(points, smooth)
    assert not _is_smooth(points, np.round(smooth * 8) / 8)
    assert not _is_smooth(points, np.where(points[:, 0] > 0.99, np.nan, smooth))


def test_a_target_that_does_not_count_is_in_no_interpolated_accuracy():
    torch.manual_seed(0)
    x, y = digits()
    y[::3] = -100

    def of_some(outputs, targets):
        terms = F.cross_entropy(outputs, targets.clamp(min=0), reduction="none")
        return terms * (targets >= 0)

    settings = {"loss": of_some, "samples": 60, "size": 31, "tolerance": 0.05}
    model = mlp(nn.Tanh)
    exact = landscape.grid(model, (x, y), **settings)
    quick = landscape.grid(model, (x, y), method="adaptive", **settings)
    assert not quick["evaluated"].all()
    assert abs(quick["accuracy"] - exact["accuracy"]).mean() < 0.02
