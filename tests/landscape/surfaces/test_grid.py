"""`landscape.grid`: coordinates, values and directions."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import landscape
from tests.helpers.surfaces import axes_by_hand, make_data, make_mlp


def test_a_metric_that_reports_where_the_model_stands_recovers_every_coordinate():
    model = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    first = {"weight": torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()}
    second = {"weight": torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double()}
    where = {
        "first": lambda model: model.weight[0, 0].item(),
        "second": lambda model: model.weight[1, 1].item(),
        "elsewhere": lambda model: model.weight[0, 1].item(),
    }
    x = torch.ones(2, 2).double()
    surface = landscape.grid(
        model,
        (x, x),
        loss=F.mse_loss,
        metrics=where,
        directions=[first, second],
        size=(5, 4),
        span=(1.0, 3.0),
        samples=2,
    )
    assert surface["loss"].dims == ("alpha", "beta")
    np.testing.assert_array_equal(surface["alpha"], [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_array_equal(surface["beta"], [-3, -1, 1, 3])
    alpha, beta = np.meshgrid(surface["alpha"], surface["beta"], indexing="ij")
    np.testing.assert_array_equal(surface["first"], alpha)
    np.testing.assert_array_equal(surface["second"], beta)
    assert not surface["elsewhere"].any()


@pytest.mark.parametrize("n", [3, 40])  # 40 inputs: through first-layer linearity
def test_a_quadratic_model_gives_the_analytic_paraboloid(n):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, n, generator=g).double(), torch.randn(7, 2, generator=g).double()
    model = nn.Linear(n, 2).double()
    surface = landscape.grid(model, (x, y), loss=F.mse_loss, samples=7, size=9, batch_size=3)
    axes = axes_by_hand(model, ["weight"], seed=0)
    residual = (x @ model.weight.T + model.bias - y).detach().numpy()
    slopes = [x.numpy() @ axis["weight"].T for axis in axes]
    for i, a in enumerate(surface["alpha"].values):
        for j, b in enumerate(surface["beta"].values):
            errors = ((residual + a * slopes[0] + b * slopes[1]) ** 2).mean(1)
            np.testing.assert_allclose(surface["loss"][i, j], errors.mean(), rtol=1e-12)
            se = errors.std(ddof=1) / np.sqrt(7)
            np.testing.assert_allclose(surface["loss_se"][i, j], se, rtol=1e-10)


def test_every_point_matches_a_copy_of_the_model_moved_by_hand():
    model, (x, y) = make_mlp(), make_data()
    surface = landscape.grid(model, (x, y), samples=30, size=5, batch_size=7)
    names = ["1.weight", "3.weight", "5.weight"]
    axes = axes_by_hand(model, names, seed=0)
    for i, a in enumerate(surface["alpha"].values):
        for j, b in enumerate(surface["beta"].values):
            moved = copy.deepcopy(model)
            for name, p in moved.named_parameters():
                if name in names:
                    p.data += torch.from_numpy(a * axes[0][name] + b * axes[1][name])
            losses = F.cross_entropy(moved(x), y, reduction="none")
            right = (moved(x).argmax(1) == y).double().mean()
            np.testing.assert_allclose(surface["loss"][i, j], losses.mean().item(), rtol=1e-12)
            np.testing.assert_allclose(
                surface["loss_se"][i, j], losses.std().item() / 30**0.5, rtol=1e-10
            )
            assert surface["accuracy"][i, j] == right


def test_default_is_51_by_51_with_the_model_in_the_middle():
    model, (x, y) = make_mlp(), make_data(n=8)
    surface = landscape.grid(model, (x, y))
    assert dict(surface.sizes) == {"alpha": 51, "beta": 51}
    assert float(surface["alpha"][0]) == -1
    assert float(surface["beta"][-1]) == 1
    centre = surface["loss"].sel(alpha=0.0, beta=0.0).item()
    np.testing.assert_allclose(centre, F.cross_entropy(model(x), y).item(), rtol=1e-14)
    assert abs(surface.attrs["cosine_of_axes"]) < 0.1


def test_axes_of_a_real_network_are_orthogonal_and_of_both_signs():
    model, data = make_mlp(inputs=300, width=64), make_data(inputs=300)
    surface = landscape.grid(model, data, samples=4, size=2)
    assert abs(surface.attrs["cosine_of_axes"]) < 0.02
    assert surface.attrs["length_alpha"] == pytest.approx(
        np.sqrt(sum((p**2).sum().item() for p in model.parameters() if p.dim() > 1)), rel=1e-12
    )


def test_directions_depend_on_seed_and_name_alone():
    model, data = make_mlp(), make_data()
    steps = []
    for over, double in [("**.weight", True), ("3.weight", True), ("3.weight", False)]:
        own = model if double else copy.deepcopy(model).float()
        x = data[0] if double else data[0].float()
        seen = []
        torch.manual_seed(len(steps))
        landscape.grid(
            own,
            (x, data[1]),
            over=over,
            samples=5,
            size=3,
            normalisation="none",
            metrics={"m": lambda model, seen=seen: seen.append(model[3].weight.clone()) or 0.0},
        )
        steps.append(seen[-2] - seen[-5])  # from (0, 0) to (1, 0)
    # Only Gram-Schmidt mixes parameters, in the second axis: the first is bitwise the same.
    np.testing.assert_array_equal(steps[0], steps[1])
    np.testing.assert_allclose(steps[2].double(), steps[1], atol=1e-6)
    assert steps[1].min() < 0 < steps[1].max()


def test_a_transposed_convolution_is_normalised_by_output_channel():
    torch.manual_seed(0)
    model = nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False).double()
    seen = []
    landscape.grid(
        model,
        (torch.randn(2, 4, 5).double(),) * 2,
        loss=lambda o, t: o.mean(),
        samples=2,
        size=3,
        metrics={"m": lambda model: seen.append(model.weight.detach().clone()) or 0.0},
    )
    step = seen[-2] - model.weight  # alpha = 1, beta = 0
    # Output channel `o` of group `g` reads the input channels of its group.
    for group in range(2):
        for out in range(3):
            rows = slice(2 * group, 2 * group + 2)
            ours, theirs = step[rows, out].norm(), model.weight[rows, out].norm()
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
