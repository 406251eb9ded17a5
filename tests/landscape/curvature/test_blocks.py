"""The diagonal blocks of the curvature, layer by layer."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import landscape
from tests.helpers.dense_curvature import dense_gauss_newton, dense_hessian, make

DENSE = {"hessian": dense_hessian, "gauss-newton": dense_gauss_newton}


def block_of(dense, model, layer):
    """The rows and columns of a dense matrix that belong to the parameters inside a layer."""
    inside = torch.cat(
        [
            torch.full((p.numel(),), name.startswith(f"{layer}."))
            for name, p in model.named_parameters()
        ]
    ).numpy()
    return dense[np.ix_(inside, inside)]


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
@pytest.mark.parametrize("memory", [2**31, 0])  # graphs kept, and made anew
def test_by_layer_is_the_block_of_the_dense_matrix(matrix, memory):
    model, data = make()
    dense = DENSE[matrix](model, data)

    measured = landscape.curvature(
        model,
        data,
        matrix=matrix,
        by="layer",
        k=2,
        samples=20,
        tolerance=1e-10,
        memory=memory,
        batch_size=7,
        density_runs=1,
    )

    owners = dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters())
    assert list(measured["layer"].values) == list(owners)
    for layer in owners:
        values = np.linalg.eigvalsh(block_of(dense, model, layer))
        here = measured.sel(layer=layer)
        np.testing.assert_allclose(here["largest"], values[::-1][:2], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(here["smallest"][0], values[0], atol=1e-8)
        np.testing.assert_allclose(here["trace"], values.sum(), rtol=0.2)
        density = np.trapezoid(here["density"], here["eigenvalue"])
        np.testing.assert_allclose(density, 1, rtol=1e-6)


def test_patterns_take_all_that_is_inside():
    x, y = torch.randn(20, 4).double(), torch.randint(3, (20,))
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model = nn.Sequential(block, nn.Linear(4, 3)).double()

    measured = landscape.curvature(
        model, (x, y), by="*", k=1, samples=20, tolerance=1e-10, density_runs=0, trace_probes=0
    )

    dense = dense_hessian(model, (x, y))
    for layer in ("0", "1"):
        expected = np.linalg.eigvalsh(block_of(dense, model, layer))[-1]
        np.testing.assert_allclose(measured["largest"].sel(layer=layer), expected, rtol=1e-8)


def test_layers_inside_layers_and_names_that_begin_alike_stay_apart():
    x, y = torch.randn(20, 4).double(), torch.randint(3, (20,))
    inner = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    model = nn.Sequential()
    model.add_module("block", inner)
    model.add_module("block2", nn.Linear(3, 3))
    model = model.double()
    settings = {"k": 1, "tolerance": 1e-10, "density_runs": 0, "trace_probes": 0}

    dense = dense_hessian(model, (x, y))
    for by, layers in (
        ("layer", ["block.0", "block.2", "block2"]),
        ("block*", ["block", "block2"]),
    ):
        measured = landscape.curvature(model, (x, y), by=by, **settings)
        assert list(measured["layer"].values) == layers
        for layer in layers:
            expected = np.linalg.eigvalsh(block_of(dense, model, layer))[-1]
            np.testing.assert_allclose(measured["largest"].sel(layer=layer), expected, rtol=1e-8)


def test_a_layer_with_few_parameters_has_few_eigenvalues():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=True)).double()
    x, y = torch.randn(20, 3).double(), torch.randint(2, (20,))
    measured = landscape.curvature(model, (x, y), by="layer", k=6, samples=20, density_runs=0)
    assert measured["largest"].sel(layer="0").notnull().all()
    assert measured["largest"].sel(layer="1").notnull().sum() == 4


def test_layers_without_parameters_are_refused():
    model, data = make()
    with pytest.raises(ValueError, match=r"`by` at '1': expected a layer with parameters"):
        landscape.curvature(model, data, by=["1"])
    with pytest.raises(ValueError, match="`by`"):
        landscape.curvature(model, data, by="nothing.*")
    with pytest.raises(ValueError, match=r"`by` at '1': expected a layer with parameters"):
        landscape.curvature(model, data, by="[1]")


def test_a_pattern_leaves_out_layers_without_parameters():
    model, data = make()
    settings = {"samples": 20, "k": 1, "density_runs": 0, "trace_probes": 0}
    by_pattern = landscape.curvature(model, data, by="*", **settings)
    by_layer = landscape.curvature(model, data, by="layer", **settings)
    assert by_pattern["layer"].values.tolist() == ["0", "2"]
    xr.testing.assert_equal(by_pattern, by_layer)
