"""Matrices that somebody else multiplies by, and products from two gradients."""

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import nn

import landscape
from tests.helpers.dense_curvature import dense_hessian, make

SETTINGS = {"k": 3, "tolerance": 1e-10, "density_runs": 0, "trace_probes": 0}


def operators(dense):
    """The same matrix in all the forms that are understood."""
    tensor = torch.from_numpy(dense)
    return {
        "scipy": scipy.sparse.linalg.aslinearoperator(dense),
        "tensor": tensor,
        "array": dense,
        "function": lambda vector: tensor @ vector,
    }


@pytest.mark.parametrize("form", ["scipy", "tensor", "array", "function"])
def test_an_operator_has_the_eigenvalues_of_its_matrix(form):
    model, data = make()
    dense = dense_hessian(model, data)
    measured = landscape.curvature(model, None, matrix=operators(dense)[form], **SETTINGS)
    values = np.linalg.eigvalsh(dense)
    np.testing.assert_allclose(measured["largest"], values[::-1][:3], rtol=1e-9)
    np.testing.assert_allclose(measured["smallest"], values[:3], atol=1e-9)


def test_blocks_of_an_operator_are_blocks_of_its_matrix():
    model, data = make()
    dense = dense_hessian(model, data)
    measured = landscape.curvature(
        model, None, matrix=torch.from_numpy(dense), by="layer", **SETTINGS
    )
    exact = landscape.curvature(model, data, by="layer", samples=20, **SETTINGS)
    np.testing.assert_allclose(measured["largest"], exact["largest"], rtol=1e-8)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_fisher_matrix_of_curvlinops():
    import curvlinops

    model, (x, y) = make()
    theirs = curvlinops.EFLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)]
    )
    dense = (theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)).detach().numpy()
    measured = landscape.curvature(model, None, matrix=theirs, **SETTINGS)
    expected = np.linalg.eigvalsh((dense + dense.T) / 2)[::-1][:3]
    np.testing.assert_allclose(measured["largest"], expected, rtol=1e-8)


def test_operators_that_do_not_fit_are_refused():
    model, data = make()
    n = sum(p.numel() for p in model.parameters())
    skew = torch.triu(torch.randn(n, n).double())
    with pytest.raises(ValueError, match="`matrix`: expected a symmetric operator"):
        landscape.curvature(model, None, matrix=skew)
    with pytest.raises(ValueError, match="`matrix`: expected an operator of shape"):
        landscape.curvature(model, None, matrix=skew[:5, :5])
    with pytest.raises(TypeError, match="`matrix`: expected products to be tensors"):
        landscape.curvature(model, None, matrix=lambda vector: None)
    with pytest.raises(ValueError, match="`matrix`: expected products of"):
        landscape.curvature(model, None, matrix=lambda vector: vector[:3])
    with pytest.raises(ValueError, match=f"fails on a flat vector of {n} numbers"):
        landscape.curvature(model, None, matrix=lambda vector: vector @ torch.eye(2))
    with pytest.raises(ValueError, match=r"`matrix`: expected one of .* or an operator"):
        landscape.curvature(model, data, matrix="fisher")
    with pytest.raises(ValueError, match="pass None for `data`"):
        landscape.curvature(model, data, matrix=torch.eye(n))


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float64, 1e-6), (torch.float32, 1e-2)])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softplus])
def test_finite_differences_are_within_their_stated_error(activation, dtype, accuracy):
    """Of networks without training and with a little, against their Hessian written out."""
    for seed, n_steps in ((0, 0), (1, 30)):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 6), activation(), nn.Linear(6, 4))
        data = torch.randn(20, 5), torch.arange(20) % 4
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for _ in range(n_steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step()
        model.zero_grad()

        model, data = model.to(dtype), (data[0].to(dtype), data[1])
        before = [p.clone() for p in model.parameters()]

        settings = SETTINGS | {"tolerance": 1e-6, "max_products": 40, "batch_size": 7}
        measured = landscape.curvature(
            model, data, samples=20, product="finite difference", **settings
        )
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))

        values = np.linalg.eigvalsh(dense_hessian(model.double(), (data[0].double(), data[1])))
        error = measured.attrs["product_error"]
        assert 0 < error < accuracy
        for end, expected in (("largest", values[::-1]), ("smallest", values)):
            found, residual = measured[end].values, measured[f"{end}_residual"].values
            assert (residual >= 0.9 * error * abs(values).max()).all()
            assert (abs(found - expected[: len(found)]) <= residual).all()


def test_finite_differences_across_kinks_say_that_they_know_little():
    """In single precision a step is long enough to meet many kinks: jumps over its length."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
    model.append(nn.Linear(40, 4))
    x, y = torch.randn(200, 20), torch.arange(200) % 4
    settings = SETTINGS | {"samples": 200, "tolerance": 1e-3, "max_products": 40}

    with pytest.warns(UserWarning, match="finite differences know products only to"):
        measured = landscape.curvature(model, (x, y), product="finite difference", **settings)
    exact = landscape.curvature(model, (x, y), **settings)
    wrong = abs(measured["largest"] - exact["largest"])
    assert (wrong > 10 * exact["largest_residual"]).any()
    assert (wrong <= measured["largest_residual"]).all()

    # In double precision none is met.
    double = landscape.curvature(
        model.double(), (x.double(), y), product="finite difference", **settings
    )
    assert double.attrs["product_error"] < 1e-6
    np.testing.assert_allclose(double["largest"], exact["largest"], rtol=1e-3)


def test_finite_differences_of_a_layer_are_those_of_its_block():
    model, data = make()
    settings = SETTINGS | {"tolerance": 1e-4}
    exact = landscape.curvature(model, data, by="layer", samples=20, **settings)
    measured = landscape.curvature(
        model, data, by="layer", samples=20, product="finite difference", **settings
    )
    np.testing.assert_allclose(measured["largest"], exact["largest"], rtol=1e-4, atol=1e-7)


def test_finite_differences_see_what_has_no_second_derivative():
    """torch has none of a hard sigmoid, though the function is smooth almost everywhere."""
    x, y = torch.randn(40, 3).double(), torch.randint(2, (40,))
    model = nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 2)).double()
    with pytest.raises(ValueError, match="product='finite difference'"):
        landscape.curvature(model, (x, y), samples=40)

    measured = landscape.curvature(
        model, (x, y), samples=40, product="finite difference", **SETTINGS | {"tolerance": 1e-4}
    )

    class SmoothSigmoid(nn.Module):
        def forward(self, h):
            return torch.clamp(h + 3, 0, 6) / 6

    model[1] = SmoothSigmoid()
    exact = landscape.curvature(model, (x, y), samples=40, **SETTINGS | {"tolerance": 1e-4})
    np.testing.assert_allclose(measured["largest"], exact["largest"], rtol=1e-3)


def test_finite_differences_that_do_not_fit_are_refused():
    model, data = make()
    with pytest.raises(ValueError, match="`product`: 'finite difference' gives only the Hessian"):
        landscape.curvature(model, data, matrix="gauss-newton", product="finite difference")
    with pytest.raises(ValueError, match=r"lost in the rounding errors of torch\.bfloat16"):
        landscape.curvature(model.bfloat16(), data, product="finite difference")
    with pytest.raises(ValueError, match="`product`"):
        landscape.curvature(model, data, product="exakt")


def test_compiled_models_have_the_curvature_of_the_model():
    model, data = make()
    exact = landscape.curvature(model, data, samples=20, **SETTINGS)
    compiled = torch.compile(model, backend="aot_eager")
    for product in ("exact", "finite difference"):
        measured = landscape.curvature(
            compiled, data, samples=20, product=product, **SETTINGS | {"tolerance": 1e-4}
        )
        np.testing.assert_allclose(measured["largest"], exact["largest"], rtol=1e-4)
