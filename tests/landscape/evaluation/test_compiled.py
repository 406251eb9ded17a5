"""Compiled models: the same numbers as without, and the model as it was."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import landscape
from tests.helpers.state import snapshot
from tests.helpers.surfaces import make_data, make_mlp


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, how):
    """Compiled whole or in part; then called, so that there is code of before."""
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    elif how == "forward":
        model.forward = torch.compile(model.forward, backend="eager")
    else:
        model[1] = torch.compile(model[1], backend="eager")
    model(make_data()[0])
    return model


def closure(model, x, y):
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize(
    ("how", "loss"),
    [
        ("wrapped", None),
        ("wrapped", closure),
        ("in place", None),
        ("forward", None),
    ],
)
def test_a_compiled_model_gives_the_surface_of_the_model(how, loss):
    plain, data = make_mlp(), make_data()
    settings = {"samples": 30, "size": 5, "loss": loss}
    expected = landscape.grid(plain, data, **settings)
    model = compiled(copy.deepcopy(plain), how)
    before = snapshot(model)
    found = landscape.grid(model, data, **settings)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)
    np.testing.assert_array_equal(found["accuracy"], expected["accuracy"])
    assert snapshot(model) == before
    x, _ = data
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)


def test_a_compiled_part_is_moved_like_any_other():
    model, data = compiled(make_mlp(), "part"), make_data()
    before = snapshot(model)
    found = landscape.grid(model, data, samples=30, size=5)
    assert snapshot(model) == before
    with torch.compiler.set_stance("force_eager"):
        expected = landscape.grid(model, data, samples=30, size=5)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_recomputed_batch_norm_under_compilation(how):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(40, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)]
    plain, data = torch.nn.Sequential(*layers).double(), make_data()
    settings = {"samples": 30, "size": 3, "bn": "recompute"}
    expected = landscape.grid(plain, data, **settings)
    model = compiled(copy.deepcopy(plain).eval(), how)
    before = snapshot(model)
    found = landscape.grid(model, data, **settings)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)
    assert snapshot(model) == before


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_curvature_and_lines_of_a_compiled_model(how):
    plain, data = make_mlp(), make_data()
    model = compiled(copy.deepcopy(plain), how)
    settings = {"samples": 30, "k": 2, "density_runs": 0, "tolerance": 1e-9}
    expected = landscape.curvature(plain, data, **settings)
    found = landscape.curvature(model, data, **settings)
    np.testing.assert_allclose(found["largest"], expected["largest"], rtol=1e-8)
    to = {name: 2 * t for name, t in plain.state_dict().items()}
    ends = [landscape.line(m, data, to=to, samples=30, size=5)["loss"] for m in (plain, model)]
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)
