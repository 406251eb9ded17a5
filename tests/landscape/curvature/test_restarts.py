"""Lanczos in a small basis: restarts change what is held, not what is found."""

import numpy as np
import pytest
import torch
from torch import nn

import landscape
from landscape._curvature import estimates, krylov_basis

# Outliers at both ends, and a bulk: what Hessians of networks look like.
SPECTRUM = np.concatenate(
    [10 * 0.7 ** np.arange(8), -0.6 * 0.8 ** np.arange(8), np.linspace(-0.03, 0.03, 484)]
)


@pytest.fixture
def _small_basis(monkeypatch):
    """Restart as soon as the smallest basis is full, as large models do."""
    monkeypatch.setattr(estimates, "_SMALL_BASIS", 0)


def diagonal_model(spectrum):
    """A model with as many weights as the operator has numbers, and the operator."""
    diagonal = torch.tensor(spectrum)
    return nn.Linear(len(spectrum), 1, bias=False).double(), lambda vector: diagonal * vector


@pytest.mark.usefixtures("_small_basis")
@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_restarted_search_finds_the_outermost_eigenvalues(k):
    model, operator = diagonal_model(SPECTRUM)
    settings = {"k": k, "tolerance": 1e-8, "density_runs": 0, "trace_probes": 0}

    measured = landscape.curvature(model, None, matrix=operator, memory=0, **settings)

    ordered = np.sort(SPECTRUM)
    assert measured.attrs["basis_size"] == 2 * k + 10
    assert measured.attrs["products_eigenvalues"] > 2 * k + 10
    np.testing.assert_allclose(measured["largest"], ordered[::-1][:k], rtol=1e-8)
    np.testing.assert_allclose(measured["smallest"], ordered[:k], atol=1e-7)
    for end in ("largest", "smallest"):
        assert (measured[f"{end}_residual"] < 1e-3).all()


@pytest.mark.usefixtures("_small_basis")
def test_residuals_of_a_restarted_search_are_those_of_its_vectors():
    model, operator = diagonal_model(SPECTRUM)
    matrix = estimates.MatrixProduct(
        lambda wanted: [[operator(pieces[0].flatten())] for _, pieces in wanted],
        list(model.parameters()),
    )
    template = torch.empty(len(SPECTRUM), dtype=torch.float64)
    effort = estimates.Effort(1e-4, 60, basis_size=16, seed=0)

    search = estimates.search_extremes(template, 3, effort)
    (ritz,) = estimates.run_together(matrix, [[0]], [search])

    assert ritz.n_products > 16
    for index in (-1, -2, -3, 0, 1, 2):
        vector = ritz.vector(index)
        residual = (operator(vector) - ritz.values[index] * vector).norm() / vector.norm()
        np.testing.assert_allclose(residual, ritz.residuals[index], rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("_small_basis")
def test_restarts_cost_few_products():
    model, operator = diagonal_model(SPECTRUM)
    settings = {"k": 5, "density_runs": 0, "trace_probes": 0}
    unlimited = landscape.curvature(model, None, matrix=operator, **settings)
    restarted = landscape.curvature(model, None, matrix=operator, memory=0, **settings)

    n_unlimited = unlimited.attrs["products_eigenvalues"]
    assert n_unlimited <= restarted.attrs["products_eigenvalues"] <= 1.5 * n_unlimited


@pytest.mark.usefixtures("_small_basis")
def test_trace_and_density_in_a_small_basis():
    model, operator = diagonal_model(SPECTRUM)
    measured = landscape.curvature(
        model,
        None,
        matrix=operator,
        memory=0,
        k=2,
        trace_probes=200,
        trace_tolerance=0.0,
        density_runs=20,
        density_steps=60,
    )

    error = 4 * measured["trace_se"].item()
    np.testing.assert_allclose(measured["trace"], SPECTRUM.sum(), atol=error)

    eigenvalues, density = measured["eigenvalue"].values, measured["density"].values
    np.testing.assert_allclose(np.trapezoid(density, eigenvalues), 1, rtol=1e-6)
    mean = np.trapezoid(density * eigenvalues, eigenvalues)
    # A diagonal matrix: random signs give its mean exactly.
    np.testing.assert_allclose(mean, SPECTRUM.mean(), atol=1e-6)


@pytest.mark.usefixtures("_small_basis")
@pytest.mark.parametrize("memory", [2**31, 0])
def test_the_largest_alone_take_fewer_products(memory):
    model, operator = diagonal_model(SPECTRUM)
    settings = {"k": 3, "memory": memory, "tolerance": 1e-8, "density_runs": 0}

    both = landscape.curvature(model, None, matrix=operator, **settings)
    largest = landscape.curvature(model, None, matrix=operator, ends="largest", **settings)

    assert largest.attrs["products_eigenvalues"] < 0.8 * both.attrs["products_eigenvalues"]
    ordered = np.sort(SPECTRUM)[::-1]
    np.testing.assert_allclose(largest["largest"], ordered[:3], rtol=1e-8)
    assert largest[["smallest", "smallest_residual"]].to_array().isnull().all()
    error = 4 * largest["trace_se"].item()
    np.testing.assert_allclose(largest["trace"], SPECTRUM.sum(), atol=error + 1e-12)


def test_a_basis_that_shrinks_spans_what_it_is_told_to(monkeypatch):
    monkeypatch.setattr(krylov_basis, "_COLUMNS_AT_A_TIME", 7)
    vectors = torch.linalg.qr(torch.randn(50, 11, dtype=torch.float64))[0].T.contiguous()
    basis = krylov_basis.KrylovBasis(vectors[0], 11)
    for vector in vectors[1:]:
        basis.append(vector)

    coordinates = torch.linalg.qr(torch.randn(11, 4, dtype=torch.float64))[0].T
    basis.shrink(coordinates)

    assert len(basis) == 4
    for index in range(4):
        torch.testing.assert_close(basis.row(index), coordinates[index] @ vectors)


@pytest.mark.parametrize("basis", ["device", "host"])
def test_a_basis_in_main_memory_gives_the_same(basis):
    model, operator = diagonal_model(SPECTRUM)
    measured = landscape.curvature(model, None, matrix=operator, basis=basis, k=2)
    np.testing.assert_allclose(measured["largest"], [10, 7], rtol=1e-3)
