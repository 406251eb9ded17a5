"""Lines, planes, trajectories and curves through several models."""

import copy

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn import functional as F

import landscape


def make(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model


def make_data(n=24):
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 40, generator=g).double(), torch.arange(n) % 3


def own_loss(model, data):
    return F.cross_entropy(copy.deepcopy(model).eval()(data[0]), data[1]).item()


def mixed(weights, models):
    """The model at an affine combination of others, buffers too, by hand."""
    result = copy.deepcopy(models[0])
    states = [m.state_dict() for m in models]
    blend = {}
    for name, value in states[0].items():
        if value.is_floating_point():
            value = sum(w * s[name] for w, s in zip(weights, states, strict=True))
            value = value.clamp(min=0) if "running_var" in name else value
        blend[name] = value
    result.load_state_dict(blend)
    return result


def test_a_line_between_models_has_both_ends_and_the_barrier():
    a, b, data = make(0), make(1), make_data()
    found = landscape.line(a, data, to=b, samples=24, size=8, span=(-0.5, 1.5))
    assert {0.0, 1.0} <= set(found["alpha"].values.tolist())
    np.testing.assert_allclose(found["loss"].sel(alpha=0), own_loss(a, data), rtol=1e-12)
    np.testing.assert_allclose(found["loss"].sel(alpha=1), own_loss(b, data), rtol=1e-12)
    for t in found["alpha"].values:
        expected = own_loss(mixed([1 - t, t], [a, b]), data)
        np.testing.assert_allclose(found["loss"].sel(alpha=t), expected, rtol=1e-11)
    inside = found["loss"].sel(alpha=slice(0, 1))
    straight = (1 - inside.alpha) * inside[0] + inside.alpha * inside[-1]
    np.testing.assert_allclose(found["barrier"], (inside - straight).max(), rtol=1e-12)
    by_state = landscape.line(a, data, to=b.state_dict(), samples=24, size=8, span=(-0.5, 1.5))
    xr.testing.assert_identical(by_state, found)


def test_a_line_along_a_direction_is_a_row_of_the_grid():
    model, data = make(), make_data()
    row = landscape.line(model, data, samples=24, size=5)
    grid = landscape.grid(model, data, samples=24, size=5)
    np.testing.assert_allclose(row["loss"], grid["loss"].sel(beta=0), rtol=1e-12)
    assert row["barrier"].isnull()
    along = {n: torch.ones_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    given = landscape.line(model, data, direction=along, samples=24, size=2, span=(-1.0, 2.0))
    assert given["alpha"].values.tolist() == [-1, 0, 2]


def test_a_plane_through_three_models_keeps_their_distances_and_losses():
    models, data = [make(seed) for seed in range(3)], make_data()
    found = landscape.plane(models, data, samples=24, size=5)
    flat = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models]
    place = np.stack([found["model_alpha"], found["model_beta"]], axis=1)
    for i in range(3):
        np.testing.assert_allclose(found["model_loss"][i], own_loss(models[i], data), rtol=1e-11)
        for j in range(3):
            apart = np.linalg.norm(place[i] - place[j])
            np.testing.assert_allclose(apart, (flat[i] - flat[j]).norm(), rtol=1e-12, atol=1e-12)
    # Affine coordinates of a grid point give the same model by hand.
    alpha, beta = found["alpha"].values[1], found["beta"].values[3]
    matrix = np.vstack([place.T, np.ones(3)])
    weights = np.linalg.solve(matrix, [alpha, beta, 1])
    expected = own_loss(mixed(weights, models), data)
    np.testing.assert_allclose(found["loss"][1, 3], expected, rtol=1e-9)
    assert np.isfinite(found["loss"]).all()
    assert found["alpha"][0] < place[:, 0].min()
    assert found["beta"][-1] > place[:, 1].max()


def test_models_on_one_line_make_no_plane():
    a, b = make(0), make(1)
    middle = mixed([0.5, 0.5], [a, b])
    with pytest.raises(ValueError, match="`models`: expected three models that are not on one"):
        landscape.plane([a, b, middle], make_data(), samples=24, size=3)
    with pytest.raises(ValueError, match="`models`: expected three models or state dicts"):
        landscape.plane([a, b], make_data(), samples=24, size=3)
    with pytest.raises(ValueError, match=r"`models\[1\]` at '0.weight'"):
        landscape.plane([a, nn.Linear(2, 2), b], make_data(), samples=24, size=3)


def make_path(model, data, steps=8):
    path = [copy.deepcopy(model.state_dict())]
    trained = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(trained(data[0]), data[1]).backward()
        optimizer.step()
        path.append(copy.deepcopy(trained.state_dict()))
    return path


def test_a_trajectory_is_the_pca_of_its_checkpoints():
    model, data = make(), make_data()
    path = make_path(model, data)
    other = make(7)  # whatever weights the model that runs has
    found = landscape.trajectory(other, path, data, samples=24, size=5, steps=range(0, 90, 10))
    names = [n for n, _ in model.named_parameters()]
    flat = np.stack([torch.cat([s[n].flatten() for n in names]).numpy() for s in path])
    centred = flat - flat.mean(0)
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(
        found["explained_variance"], (values**2 / (values**2).sum())[:2], rtol=1e-9
    )
    steps = flat - flat[-1]
    projected = steps @ vectors[:2].T
    np.testing.assert_allclose(np.abs(found["path_alpha"]), np.abs(projected[:, 0]), atol=1e-9)
    np.testing.assert_allclose(np.abs(found["path_beta"]), np.abs(projected[:, 1]), atol=1e-9)
    away = np.linalg.norm(steps - projected @ vectors[:2], axis=1)
    np.testing.assert_allclose(found["path_distance"], away, atol=1e-7)
    for i, state in enumerate(path):
        at = copy.deepcopy(model)
        at.load_state_dict(state)
        np.testing.assert_allclose(found["path_loss"][i], own_loss(at, data), rtol=1e-10)
    assert found["step"].values.tolist() == list(range(0, 90, 10))
    # On the plane: the last checkpoint's statistics, weights moved along the components.
    last = copy.deepcopy(model)
    last.load_state_dict(path[-1])
    signs = [
        np.sign(found[f"path_{n}"][0].item() * projected[0, i])
        for i, n in enumerate(("alpha", "beta"))
    ]
    a, b = found["alpha"].values[3], found["beta"].values[1]
    step = torch.from_numpy(a * signs[0] * vectors[0] + b * signs[1] * vectors[1])
    for p in last.parameters():
        p.data += step[: p.numel()].view_as(p)
        step = step[p.numel() :]
    np.testing.assert_allclose(found["loss"][3, 1], own_loss(last, data), rtol=1e-9)


def test_principal_directions_serve_as_axes_of_a_grid():
    model, data = make(), make_data()
    path = make_path(model, data)
    axes = landscape.principal_directions(model, path)
    surface = landscape.grid(model, data, directions=axes, samples=24, size=3)
    assert abs(surface.attrs["cosine_of_axes"]) < 1e-10
    np.testing.assert_allclose(surface.attrs["length_alpha"], 1, rtol=1e-10)
    with pytest.raises(ValueError, match="expected weights that change"):
        landscape.principal_directions(model, [path[0]] * 3)


def test_a_bent_curve_is_lower_than_the_straight_line_and_is_the_bezier_formula():
    torch.manual_seed(0)
    data = torch.randn(60, 6), torch.arange(60) % 3
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(200):
            optimizer.zero_grad()
            F.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step()
        models.append(model)
    a, b = models
    control = landscape.bend(a, b, data, steps=200, lr=0.02)
    bent = landscape.curve(a, b, data, control, samples=60, size=11)
    straight = landscape.line(a, data, to=b, samples=60, size=11)
    assert bent["barrier"] < 0.5 * straight["barrier"]
    t = bent["alpha"].values[3]
    middle = copy.deepcopy(a)
    for (n, p), q in zip(middle.named_parameters(), b.parameters(), strict=True):
        p.data = (1 - t) ** 2 * p.data + 2 * t * (1 - t) * control[n] + t**2 * q.data
    np.testing.assert_allclose(bent["loss"][3], own_loss(middle, data), rtol=1e-4)
    again = landscape.bend(a, b, data, steps=200, lr=0.02)
    assert all(torch.equal(again[n], control[n]) for n in control)
    with pytest.raises(ValueError, match=r"`control`: expected every parameter, 2\.bias missing"):
        landscape.curve(a, b, data, {n: c for n, c in control.items() if n != "2.bias"}, samples=60)


def test_a_line_has_one_direction():
    with pytest.raises(TypeError, match="`direction`: expected a name or a mapping, got list"):
        landscape.line(make(), make_data(), direction=[{}, {}], samples=24)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"size": 1}, "`size`"),
        ({"span": (1.0, 0.0)}, "`span`: expected two finite numbers"),
        ({"span": (0.0, 0.5)}, "`span`: expected a range that contains both ends"),
        ({"over": "**"}, "`to`: cannot be combined with"),
        (
            {"to": {"0.weight": torch.ones(1)}},
            r"`to` at '0.weight': expected \(8, 40\), got \(1,\)",
        ),
    ],
)
def test_bad_lines_are_refused(change, told):
    with pytest.raises(ValueError, match=told):
        landscape.line(make(), make_data(), **({"to": make(1), "samples": 24} | change))


def test_a_straight_path_has_a_plane_of_some_width():
    a, b, data = make(0), make(1), make_data()
    path = [mixed([1 - t, t], [a, b]).float() for t in np.linspace(0, 1, 6)]  # with round-off
    data = data[0].float(), data[1]
    found = landscape.trajectory(path[0], path, data, samples=24, size=5, margin=0.5)
    assert found["explained_variance"].round(6).values.tolist() == [1, 0]
    np.testing.assert_allclose(found["path_beta"], 0, atol=1e-6)
    np.testing.assert_allclose(found["beta"], [-2, -1, 0, 1, 2], rtol=1e-12)


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_a_margin_is_a_number_of_at_least_0(margin):
    a, data = make(), make_data()
    with pytest.raises(ValueError, match="`margin`: expected a finite number of at least 0"):
        landscape.trajectory(a, make_path(a, data, 3), data, samples=24, size=3, margin=margin)


def test_a_wrapped_model_needs_every_control_point_too():
    a, b, data = make(0), make(1), make_data()
    control = landscape.bend(a, b, data, steps=1)
    control.pop("0.weight")
    with pytest.raises(ValueError, match=r"`control`: expected every parameter, 0.weight missing"):
        landscape.curve(nn.DataParallel(a), b, data, control, samples=24, size=3)
