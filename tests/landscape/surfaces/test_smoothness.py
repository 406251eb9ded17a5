"""`smoothness` against closed forms, and `dilution` against the parameter count."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn import functional as F

import landscape


def surface(f, n=51, span=1.0):
    axis = np.linspace(-span, span, n)
    a, b = np.meshgrid(axis, axis, indexing="ij")
    values = f(a, b) * np.ones_like(a)
    return xr.Dataset({"loss": (("alpha", "beta"), values)}, coords={"alpha": axis, "beta": axis})


def test_a_plane_has_the_statistics_of_a_plane():
    found = landscape.smoothness(surface(lambda a, b: 3 * a + 4 * b + 7))
    n = 51
    variance = (9 + 16) * (n + 1) / (3 * (n - 1))  # of 51 even points on [-1, 1]
    np.testing.assert_allclose(found["std"], np.sqrt(variance), rtol=1e-12)
    np.testing.assert_allclose(found["range"], 14, rtol=1e-12)
    np.testing.assert_allclose(found["mean_grad"], 5, rtol=1e-12)
    np.testing.assert_allclose(found["mean_grad_per_step"], 5 * 0.04, rtol=1e-12)
    np.testing.assert_allclose(found["total_variation"], (3 + 4) * 2 * 2, rtol=1e-12)
    np.testing.assert_allclose(found["curvature_max"], 0, atol=1e-9)
    np.testing.assert_allclose(found["slope_correlation"], 1, rtol=1e-9)
    assert found["under_resolved"] == 0


def test_a_saddle_has_the_curvature_of_its_hessian():
    found = landscape.smoothness(surface(lambda a, b: 1.5 * a**2 - b**2 + 2 * a * b))
    expected = np.linalg.eigvalsh([[3, 2], [2, -2]])
    np.testing.assert_allclose(found["curvature_min"], expected[0], rtol=1e-9)
    np.testing.assert_allclose(found["curvature_max"], expected[1], rtol=1e-9)
    assert found["convex_share"] == 0
    assert landscape.smoothness(surface(lambda a, b: a**2 + b**2))["convex_share"] == 1


def test_sharpness_is_the_largest_rise_in_the_ball():
    found = landscape.smoothness(surface(lambda a, b: a**2 + 2 * b**2 + 3), radii=[0.2, 1, 5])
    np.testing.assert_allclose(found["sharpness"], [2 * 0.2**2, 2, 3], rtol=1e-9)
    even = landscape.smoothness(surface(lambda a, b: a**2, n=10), radii=[1])
    assert even["sharpness"].isnull().all()  # (0, 0) is no point


def test_noise_is_under_resolved_and_a_bowl_is_not():
    noise = np.random.default_rng(0).normal(size=(51, 51))
    found = landscape.smoothness(surface(lambda a, b: noise))
    assert found["under_resolved"] == 1
    np.testing.assert_allclose(found["slope_correlation"], -0.5, atol=0.05)  # of white noise
    bowl = landscape.smoothness(surface(lambda a, b: a**2 + b**2))
    assert bowl["under_resolved"] == 0
    flat = landscape.smoothness(surface(lambda a, b: 0 * a))
    assert flat["slope_correlation"].isnull()
    assert flat["under_resolved"].isnull()


def test_points_without_a_value_are_left_out_and_counted():
    ds = surface(lambda a, b: 3 * a + 4 * b)
    ds["loss"][0, 0], ds["loss"][50, 50] = np.nan, np.inf
    found = landscape.smoothness(ds)
    assert found["n_non_finite"] == 2
    np.testing.assert_allclose(found["mean_grad"], 5, rtol=1e-9)
    np.testing.assert_allclose(found["range"], 14 - 2 * 3 * 0.04, rtol=1e-9)
    ds["loss"][:] = np.nan
    assert landscape.smoothness(ds)["std"].isnull()


def test_further_dimensions_are_kept():
    one, two = surface(lambda a, b: a), surface(lambda a, b: 2 * a)
    both = xr.concat([one, two], dim=xr.Variable("seed", [3, 4], {"long_name": "seed"}))
    found = landscape.smoothness(both)
    np.testing.assert_allclose(found["range"].sel(seed=4), 2 * found["range"].sel(seed=3))
    assert found["sharpness"].dims == ("seed", "radius")


@pytest.mark.parametrize("ds", [xr.Dataset(), surface(lambda a, b: a, n=2)])
def test_what_is_no_surface_is_refused(ds):
    with pytest.raises(ValueError, match="`surface`: expected"):
        landscape.smoothness(ds)


class Branches(nn.Module):
    """One trained head, a frozen one, and frozen ones kept as a buffer."""

    def __init__(self, width, classes, n):
        super().__init__()
        self.active = nn.Linear(width, classes, bias=False)
        self.frozen = nn.Linear(width, classes, bias=False).requires_grad_(False)
        self.register_buffer("static_weight", torch.randn(n, classes, width))
        self.register_buffer("counts", torch.zeros(1000))


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    return model, (torch.randn(30, 40).double(), torch.arange(30) % 3)


@pytest.mark.parametrize("radii", [(), 0.5, "0.5", ("x",), (-1,), [0.5, float("nan")], [[0.5]]])
def test_radii_are_distances(radii):
    with pytest.raises(ValueError, match="`radii`: expected"):
        landscape.smoothness(surface(lambda a, b: a + b, n=3), radii=radii)


def test_a_direction_over_backbone_and_branches_is_diluted_by_the_parameter_count_exactly():
    model, data = make()
    branches = Branches(32, 3, n=6).double()
    backbone = sum(p.numel() for p in model.parameters())
    total = backbone + (2 + 6) * 32 * 3
    everything = dict(model.named_parameters())
    branch = {"active.weight": branches.active.weight, "frozen.weight": branches.frozen.weight}
    branch["static_weight"] = branches.static_weight
    signs = {n: torch.sign(torch.randn_like(p)) for n, p in everything.items()}
    other = {n: torch.sign(torch.randn_like(p)) for n, p in everything.items()}
    spread = {f"extra.{n}": torch.ones_like(p) for n, p in branch.items()}
    joint = landscape.grid(
        model,
        data,
        directions=[signs | spread, other | spread],
        normalisation="unit",
        extra=branches,
        over="**",
        samples=30,
        size=5,
    )
    factor = np.sqrt(backbone / total)
    np.testing.assert_allclose(joint.attrs["length_on_model"], factor, rtol=1e-14)
    alone = landscape.grid(
        model,
        data,
        directions=[signs, other],
        normalisation="unit",
        over="**",
        samples=30,
        size=5,
        span=float(factor),
    )
    np.testing.assert_allclose(joint["loss"], alone["loss"], rtol=1e-13)


def test_dilution_reports_both_surfaces_and_the_factor():
    model, data = make()
    branches = Branches(32, 3, n=40).double()
    found = landscape.dilution(model, data, branches, samples=30, size=9)
    backbone = sum(p.numel() for p in model.parameters())
    total = backbone + 42 * 32 * 3
    assert found["n_covered"].values.tolist() == [total, backbone]
    np.testing.assert_allclose(found["factor"], np.sqrt(backbone / total), rtol=1e-14)
    # Gaussian directions keep this share of their length up to sampling.
    np.testing.assert_allclose(found["backbone_length"][0], found["factor"], rtol=0.1)
    np.testing.assert_allclose(found["backbone_length"][1], 1, rtol=1e-12)
    # A short plane is nearly flat: its range shrinks like the length.
    short = landscape.dilution(model, data, branches, samples=30, size=5, span=1e-3)
    np.testing.assert_allclose(
        short["change"].sel(statistic="range") + 1, short["backbone_length"][0], rtol=0.1
    )


def test_extra_tensors_move_with_a_loss_that_reads_them_and_come_back():
    model, (x, y) = make()
    branches = Branches(32, 3, n=2).double()
    before = [t.clone() for t in (*branches.parameters(), *branches.buffers())]

    def total(model, x, y):
        hidden = model[1](model[0](x))
        logits = torch.einsum("bh,nch->bnc", hidden, branches.static_weight)
        return F.cross_entropy(model(x), y) + sum(
            F.cross_entropy(logits[:, n], y) for n in range(2)
        )

    still = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    step = {f"extra.{n}": torch.zeros_like(p) for n, p in branches.named_parameters()}
    step["extra.static_weight"] = torch.ones_like(branches.static_weight)
    other = step | {"extra.static_weight": torch.randn_like(branches.static_weight)}
    surface = landscape.grid(
        model,
        (x, y),
        loss=total,
        extra=branches,
        directions=[still | step, still | other],
        samples=30,
        size=3,
    )
    expected = {}
    start = branches.static_weight.clone()
    for i in (-1, 1):
        branches.static_weight = start + i * other["extra.static_weight"]
        expected[i] = total(model, x, y).item()
    branches.static_weight = start
    for i in (-1, 1):
        np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=i), expected[i], rtol=1e-12)
    for a, b in zip(before, (*branches.parameters(), *branches.buffers()), strict=True):
        assert torch.equal(a, b)
