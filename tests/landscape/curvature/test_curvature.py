"""Eigenvalues, trace and density against dense matrices and other libraries."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import landscape
from landscape._curvature import estimates
from tests.helpers.dense_curvature import dense_gauss_newton, dense_hessian, make

DENSE = {"hessian": dense_hessian, "gauss-newton": dense_gauss_newton}


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
@pytest.mark.parametrize("memory", [2**31, 0])  # graphs kept, and made anew
def test_eigenvalues_and_trace_are_those_of_the_dense_matrix(matrix, memory):
    model, data = make()
    dense = np.linalg.eigvalsh(DENSE[matrix](model, data))
    settings = {"samples": 20, "matrix": matrix, "memory": memory, "batch_size": 7}
    found = landscape.curvature(model, data, k=4, tolerance=1e-10, density_runs=0, **settings)
    np.testing.assert_allclose(found["largest"], dense[::-1][:4], rtol=1e-9)
    # Gauss-Newton has many zeros, of which Lanczos need not find more than one.
    ends = 4 if matrix == "hessian" else 1
    np.testing.assert_allclose(found["smallest"][:ends], dense[:ends], atol=1e-9)
    assert (found["largest_residual"] < 1e-4).all()
    few = landscape.curvature(
        model, data, k=2, trace_probes=50, trace_tolerance=0.0, density_runs=0, **settings
    )
    assert few.attrs["products_trace"] == 50
    assert few["trace_se"] > 0
    np.testing.assert_allclose(few["trace"], dense.sum(), atol=4 * few["trace_se"].item())


def test_all_products_give_the_trace_exactly():
    model, data = make()
    found = landscape.curvature(model, data, k=40, samples=20, density_runs=0)
    np.testing.assert_allclose(found["trace"], np.trace(dense_hessian(model, data)), rtol=1e-9)
    assert found["trace_se"] == 0


def test_the_standard_error_of_the_trace_is_honest():
    model, data = make()
    truth = np.trace(dense_hessian(model, data))
    scores = []
    for seed in range(40):
        found = landscape.curvature(
            model,
            data,
            k=1,
            samples=20,
            seed=seed,
            max_products=3,
            trace_probes=10,
            trace_tolerance=0.0,
            density_runs=0,
        )
        scores.append((found["trace"].item() - truth) / found["trace_se"].item())
    # Student's t with 9 degrees of freedom: standard deviation 1.13.
    assert abs(np.mean(scores)) < 0.6
    assert 0.75 < np.std(scores) < 1.6


def test_density_integrates_to_one_with_the_right_moments():
    model, data = make()
    dense = np.linalg.eigvalsh(dense_hessian(model, data))
    found = landscape.curvature(
        model, data, samples=20, k=1, density_runs=200, density_steps=30, trace_probes=0
    )
    assert found["trace"].isnull()
    values, density = found["eigenvalue"].values, found["density"].values
    width = np.ptp(values) / 1.12 / 100  # of the bumps: the axis is 100 + 2 * 6 of them long
    np.testing.assert_allclose(np.trapezoid(density, values), 1, rtol=1e-6)
    mean = np.trapezoid(density * values, values)
    second = np.trapezoid(density * values**2, values) - width**2
    # Spread of random signs: 2 * (sum of squares off the diagonal) / n^2 / runs.
    slack = 4 * np.sqrt(2 * (dense**2).sum() / 200) / len(dense)
    np.testing.assert_allclose(mean, dense.mean(), atol=slack)
    slack = 4 * np.sqrt(2 * (dense**4).sum() / 200) / len(dense)
    np.testing.assert_allclose(second, (dense**2).mean(), atol=slack)


def test_eigenvectors_are_eigenvectors():
    model, data = make()
    dense = dense_hessian(model, data)
    found = landscape.eigenvectors(model, data, k=3, samples=20, tolerance=1e-12)
    values = np.linalg.eigvalsh(dense)[::-1]
    for value, direction in zip(values, found, strict=False):
        vector = torch.cat([direction[n].flatten() for n, _ in model.named_parameters()]).numpy()
        np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-10)
        np.testing.assert_allclose(dense @ vector, value * vector, atol=1e-5 * values[0])


def test_hessian_and_gradient_axes_of_a_grid():
    model, (x, y) = make()
    surface = landscape.grid(
        model, (x, y), directions="hessian", over="**", samples=20, size=3, span=1e-3
    )
    values = np.linalg.eigvalsh(dense_hessian(model, (x, y)))[::-1]
    loss = surface["loss"]
    for axis, value in (("alpha", values[0]), ("beta", values[1])):
        row = loss.sel({"beta" if axis == "alpha" else "alpha": 0}).values
        np.testing.assert_allclose((row[0] - 2 * row[1] + row[2]) / 1e-6, value, rtol=1e-3)
    surface = landscape.grid(
        model, (x, y), directions="gradient", over="**", samples=20, size=3, span=1e-5
    )
    row = surface["loss"].sel(beta=0).values
    F.cross_entropy(model(x), y).backward()
    steepness = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    np.testing.assert_allclose((row[2] - row[0]) / 2e-5, steepness, rtol=1e-6)
    assert abs(surface.attrs["cosine_of_axes"]) < 1e-12


@pytest.mark.filterwarnings("ignore:Using backward")  # theirs
def test_agrees_with_pyhessian():
    import pyhessian

    model, (x, y) = make(torch.float32)
    found = landscape.curvature(model, (x, y), samples=20, k=2, trace_probes=200, density_runs=0)
    theirs = pyhessian.hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
    values, _ = theirs.eigenvalues(top_n=1, tol=1e-6, maxIter=1000)
    np.testing.assert_allclose(found["largest"][0], values[0], rtol=1e-3)
    truth = np.trace(dense_hessian(model, (x, y)))
    torch.manual_seed(0)
    # One probe at a time: asked for more, it stops too soon where a mean is negative.
    probes = [theirs.trace(maxIter=1)[0] for _ in range(300)]
    np.testing.assert_allclose(np.mean(probes), truth, atol=4 * np.std(probes) / 300**0.5)
    np.testing.assert_allclose(found["trace"], truth, rtol=0.05)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_agrees_with_curvlinops():
    import curvlinops

    model, (x, y) = make()
    for matrix, operator in (
        ("hessian", curvlinops.HessianLinearOperator),
        ("gauss-newton", curvlinops.GGNLinearOperator),
    ):
        theirs = operator(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
        dense = theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)
        expected = np.linalg.eigvalsh(dense.detach().numpy())[::-1]
        found = landscape.curvature(
            model, (x, y), samples=20, k=3, tolerance=1e-10, matrix=matrix, density_runs=0
        )
        np.testing.assert_allclose(found["largest"], expected[:3], rtol=1e-8)


@pytest.fixture(scope="module")
def restarted():
    """A network of 20,000 weights, data, and its eigenvalues from a basis of twenty vectors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 80), nn.Tanh())
    model = nn.Sequential(*model, nn.Linear(80, 10)).double()
    data = torch.randn(60, 64).double(), torch.arange(60) % 10

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "_SMALL_BASIS", 0)
        found = landscape.curvature(
            model,
            data,
            samples=60,
            memory=0,
            tolerance=1e-6,
            max_products=600,
            trace_probes=0,
            density_runs=0,
        )
    assert found.attrs["basis_size"] == 20
    assert found.attrs["products_eigenvalues"] > 60
    return model, data, found


def assert_within_residuals(found, name, values):
    """A Ritz value is no farther from an eigenvalue than its residual is long."""
    distances = abs(found[name].values - values)
    assert (distances <= found[f"{name}_residual"].values + 1e-9 * abs(values[0])).all()
    # What a residual allows is far more than what tolerances of 1e-6 do.
    np.testing.assert_allclose(found[name], values, atol=2e-6 * abs(values[0]))


@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_restarted_search_agrees_with_curvlinops_on_a_larger_network(restarted):
    import curvlinops
    from scipy.sparse.linalg import eigsh

    model, data, found = restarted
    theirs = curvlinops.HessianLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [data]
    )
    values = eigsh(theirs.to_scipy(), k=10, which="BE", return_eigenvectors=False)
    ordered = np.sort(values)
    assert_within_residuals(found, "largest", ordered[::-1][:5])
    assert_within_residuals(found, "smallest", ordered[:5])


@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_restarted_search_agrees_with_pyhessian_on_a_larger_network(restarted):
    import pyhessian

    model, data, found = restarted
    theirs = pyhessian.hessian(model, nn.CrossEntropyLoss(), data=data, cuda=False)
    (value,), _ = theirs.eigenvalues(top_n=1, tol=1e-9, maxIter=500)
    np.testing.assert_allclose(found["largest"][0], value, rtol=1e-5)


def test_a_restarted_search_agrees_with_hessian_eigenthings_on_a_larger_network(restarted):
    eigenthings = pytest.importorskip("hessian_eigenthings")

    model, data, found = restarted
    loss = eigenthings.supervised_loss(nn.CrossEntropyLoss())
    operator = eigenthings.HessianOperator(model, [data], loss)
    for name, which in (("largest", "LA"), ("smallest", "SA")):
        theirs = eigenthings.lanczos(
            operator, k=5, which=which, max_iter=120, reorthogonalize=True, seed=0
        )
        assert_within_residuals(found, name, theirs.eigenvalues.numpy())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
def test_half_precision_costs_digits_and_no_more(kind, matrix):
    model, (x, y) = make()
    model, x = model.to(kind), x.to(kind)
    settings = {"samples": 20, "matrix": matrix, "k": 3, "density_runs": 0}
    found = landscape.curvature(model, (x, y), **settings)
    dense = np.linalg.eigvalsh(DENSE[matrix](model.double(), (x.double(), y)))
    rounding = 8 * torch.finfo(kind).eps * abs(dense).max()
    np.testing.assert_allclose(found["largest"], dense[::-1][:3], atol=rounding)
    np.testing.assert_allclose(found["smallest"][0], dense[0], atol=rounding)


def test_types_of_parameters_may_differ():
    model, (x, y) = make()
    dense = np.linalg.eigvalsh(dense_hessian(model, (x, y)))
    first, last = model[0].float(), model[-1]
    before = model[0].register_forward_pre_hook(lambda _m, args: args[0].float())
    after = model[0].register_forward_hook(lambda _m, _args, out: out.double())
    found = landscape.curvature(model, (x, y), k=2, samples=20, density_runs=0)
    np.testing.assert_allclose(found["largest"], dense[::-1][:2], rtol=1e-3)
    top, _ = landscape.eigenvectors(model, (x, y), k=2, samples=20, over="**")
    assert (top["0.weight"].dtype, top[f"{len(model) - 1}.weight"].dtype) == (
        first.weight.dtype,
        last.weight.dtype,
    )
    before.remove()
    after.remove()


def test_fewer_products_than_eigenvectors_are_refused():
    model, data = make()
    with pytest.raises(ValueError, match="expected enough products for 2 eigenvectors, got 1"):
        landscape.eigenvectors(model, data, k=2, samples=20, max_products=1)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_residuals_are_those_of_the_dense_matrix_or_rounding(kind):
    model, (x, y) = make()
    model, x = model.to(kind), x.to(kind)
    settings = {"k": 2, "samples": 20, "max_products": 40, "tolerance": 0.0}
    found = landscape.curvature(model, (x, y), density_runs=0, **settings)
    vectors = landscape.eigenvectors(model, (x, y), **settings)
    dense = dense_hessian(model.double(), (x.double(), y))
    for value, residual, vector in zip(
        found["largest"].values, found["largest_residual"].values, vectors, strict=True
    ):
        v = torch.cat([part.double().flatten() for part in vector.values()]).numpy()
        v /= np.linalg.norm(v)
        # Rounding of both products, ours and the dense one, grows as the root of their length.
        assert np.linalg.norm(dense @ v - value * v) < len(dense) ** 0.5 * residual
        assert residual < 4 * torch.finfo(kind).eps * abs(dense).max() * len(dense)
