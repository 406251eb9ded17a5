"""`attention.capture` on every family of models."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils._pytree import tree_leaves

import attention
from tests.helpers import attention_models
from tests.helpers.attention_models import MODELS, build, call
from tests.helpers.state import snapshot

# torch leaves its C++ path for these while anyone looks on, and rounds elsewhere.
FAST_PATH = ("torch multi-head", "torch encoder", "torchvision vit")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of the plain forward
@pytest.mark.parametrize("name", MODELS)
def test_every_attention_is_read_and_nothing_changes(name):
    model, x, count = build(name)
    with torch.no_grad():
        expected = tree_leaves(call(model, x))[0]
    before = snapshot(model)

    # Two arrays would be inputs and targets.
    data = (x, None) if isinstance(x, tuple) else x
    seen = attention.capture(model, data, queries="all", maps=True, keys="all")

    assert snapshot(model) == before
    assert seen.sizes["layer"] == count
    rows = seen["weight"].sum("key", min_count=1)
    sizes = seen["n_heads"] * seen["n_windows"] * seen["n_queries"] * seen.sizes["sample"]
    np.testing.assert_allclose(rows.notnull().sum(), sizes.sum())  # no row is missing
    np.testing.assert_allclose(rows.values[rows.notnull().values], 1, atol=1e-5)
    output = torch.from_numpy(seen["prediction"].values)
    if seen.sizes["sample"] != len(expected):
        expected = expected[None] if seen.sizes["sample"] == 1 else expected.transpose(0, 1)
    if name.startswith(FAST_PATH):
        torch.testing.assert_close(output, expected.double(), atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(output, expected.double())


def test_there_are_at_least_thirty_configurations():
    assert len(attention_models.MODELS) >= 30


@pytest.mark.parametrize("name", ["timm vit", "timm swin", "hf vit eager", "torch encoder"])
def test_context_manager_reads_the_same_and_keeps_the_graph(name):
    model, x, _ = build(name)
    expected = attention.capture(model, x, queries="mean")
    with attention.capturing(model, queries="mean") as recording:
        output = tree_leaves(call(model, x))[0]
    got = recording.dataset()
    xr.testing.assert_identical(got, expected[list(got.data_vars)])
    output.sum().backward()
    assert any(p.grad is not None for p in model.parameters())
