"""Which rows and keys `attention.capture` reads, how many at a time, and how far they reach."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils._python_dispatch import TorchDispatchMode

import attention
from tests.helpers.attention_models import build
from tests.helpers.small_vit import small_vit


def test_class_token_over_patches_is_renormalised():
    model, x = small_vit().double(), torch.randn(3, 3, 32, 32).double()
    whole = attention.capture(model, x, keys="all", maps=True)
    patches = attention.capture(model, x, maps=True)
    rows = whole["weight"].values
    np.testing.assert_allclose(whole["prefix_mass"], rows[..., 0], atol=1e-15)
    expected = rows[..., 1:] / rows[..., 1:].sum(-1, keepdims=True)
    np.testing.assert_allclose(patches["weight"], expected, atol=1e-15)
    with torch.no_grad():
        np.testing.assert_array_equal(patches["prediction"], model(x))


def test_rows_asked_for_are_those_of_the_whole_map():
    model, x = small_vit().double(), torch.randn(2, 3, 32, 32).double()
    settings = {"keys": "all", "maps": True}
    whole = attention.capture(model, x, queries="all", **settings)
    cls = attention.capture(model, x, queries="cls", **settings)
    some = attention.capture(model, x, queries=[3, -1, 99], **settings)
    mean = attention.capture(model, x, queries="mean", **settings)
    for name in whole.data_vars.keys() - {"prediction"}:
        rows = whole[name]
        np.testing.assert_allclose(cls[name], rows.isel(query=0), atol=1e-12)
        np.testing.assert_allclose(some[name].isel(query=0), rows.isel(query=3), atol=1e-12)
        np.testing.assert_allclose(some[name].isel(query=1), rows.isel(query=-1), atol=1e-12)
        assert some[name].isel(query=2).isnull().all()
        np.testing.assert_allclose(mean[name], rows.mean("query"), atol=1e-12)


@pytest.mark.parametrize("name", ["timm vit", "timm swin"])
def test_the_default_device_decides_nothing(name):
    model, x, _ = build(name)
    expected = attention.capture(model, x, queries=[0, 3, 9999], maps=True)
    with torch.device("meta"):
        found = attention.capture(model, x, queries=[0, 3, 9999], maps=True)
    xr.testing.assert_identical(found, expected)


def test_rows_of_windows_are_counted_through_all_windows():
    model, x, _ = build("timm swin")
    whole = attention.capture(model, x, queries="all", maps=True)
    some = attention.capture(model, x, queries=[0, 60, 700], maps=True)
    for name in ("weight", "gini", "distance", "head_similarity"):
        np.testing.assert_allclose(
            some[name], whole[name].isel(query=[0, 60, 700]), atol=1e-6, equal_nan=True
        )
    mean = attention.capture(model, x, queries="mean", maps=True)
    np.testing.assert_allclose(mean["gini"], whole["gini"].mean("query"), atol=1e-6)


@pytest.mark.parametrize("name", ["timm vit", "timm swin", "hf gpt2 sdpa", "hf bert eager"])
def test_chunks_change_nothing(name):
    model, x, _ = build(name)
    whole = attention.capture(model, x, queries="all", maps=True, chunk=10**6)
    pieces = attention.capture(model, x, queries="all", maps=True, chunk=3)
    for variable in whole.data_vars:
        np.testing.assert_allclose(pieces[variable], whole[variable], rtol=1e-5, atol=1e-6)


class Largest(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel())
        return result


@pytest.mark.parametrize("queries", ["all", "mean", "cls"])
def test_no_whole_map_is_ever_made(queries):
    model, x = small_vit(patch_size=2, embed_dim=6), torch.randn(1, 3, 32, 32)
    with torch.no_grad(), Largest() as plain:
        model(x)
    with Largest() as captured:
        attention.capture(model, x, queries=queries, chunk=8)
    n_tokens = 257
    assert captured.size <= max(plain.size, 3 * 8 * n_tokens)
    assert plain.size < 3 * n_tokens**2


def test_distance_on_a_grid_a_coarser_grid_and_a_sequence():
    def brute(weight, place, key_place):
        steps = [[np.hypot(a - c, b - d) for c, d in key_place] for a, b in place]
        return (weight * np.array(steps)).sum(-1)

    model, x, _ = build("timm vit, wide image")  # 2 x 6 patches
    seen = attention.capture(model, x, queries="all", maps=True)
    place = [(row, column) for row in range(2) for column in range(6)]
    weight = seen["weight"].values[:, :, :, 1:]
    np.testing.assert_allclose(
        seen["distance"].values[..., 1:], brute(weight, place, place), rtol=1e-5
    )
    assert seen["distance"].isel(query=0).isnull().all()  # the class token is nowhere

    model, x, _ = build("timm pvt")  # first stage: 16 x 16 queries, 2 x 2 keys
    seen = attention.capture(model, x, queries="all", maps=True).isel(layer=0, head=0)
    place = [(row, column) for row in range(16) for column in range(16)]
    key_place = [(row, column) for row in (3.5, 11.5) for column in (3.5, 11.5)]
    np.testing.assert_allclose(
        seen["distance"], brute(seen["weight"].values, place, key_place), rtol=1e-5
    )

    model, x, _ = build("hf gpt2 sdpa")
    seen = attention.capture(model, x, queries="all", maps=True)
    line = [(0, position) for position in range(7)]
    weight = seen["weight"].fillna(0).values
    np.testing.assert_allclose(seen["distance"], brute(weight, line, line), rtol=1e-5)
