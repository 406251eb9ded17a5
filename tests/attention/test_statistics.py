"""`attention.statistics` and `attention.rollout` against closed forms, scipy and plain loops."""

import numpy as np
import pytest
import scipy.stats
import torch
import xarray as xr

import attention
from attention._measure import measure
from tests.helpers.small_vit import small_vit


def rows(weights, dims=("head", "key")):
    return xr.Dataset({"weight": (dims, np.asarray(weights, dtype=float))})


def values(result, name):
    return result[name].values


@pytest.mark.parametrize("n", [2, 7, 10, 64])  # of 10, nine hold 0.9 exactly
def test_uniform_rows(n):
    got = attention.statistics(rows(np.full((3, n), 1 / n)), mass=0.9)
    expected = {
        "entropy": np.log(n),
        "normalised_entropy": 1,
        "gini": 0,
        "peak": 1 / n,
        "coverage": 1,
        "mass_coverage": np.ceil(0.9 * n) / n,
        "participation": n,
        "head_similarity": 1,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_one_hot_rows(n):
    got = attention.statistics(rows(np.eye(n)))
    expected = {
        "entropy": 0,
        "normalised_entropy": 0,
        "gini": 1 - 1 / n,
        "peak": 1,
        "coverage": 1 / n,
        "mass_coverage": 1 / n,
        "participation": 1,
        "head_similarity": 0,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("threshold", "mass"), [(0.1, 0.9), (0.5, 0.5), (1.0, 1.0)])
def test_random_rows_against_scipy_and_loops(threshold, mass):
    generator = np.random.default_rng(0)
    weights = generator.dirichlet(np.full(9, 0.4), size=(4, 3, 2))  # sample, head, query
    got = attention.statistics(
        rows(weights, ("sample", "head", "query", "key")), threshold=threshold, mass=mass
    )
    for index in np.ndindex(4, 3, 2):
        p = weights[index]
        fewest = next(k for k in range(1, 10) if np.sort(p)[::-1][:k].sum() >= mass - 1e-9)
        expected = {
            "entropy": scipy.stats.entropy(p),
            "normalised_entropy": scipy.stats.entropy(p, base=9),
            "gini": np.abs(p[:, None] - p[None]).sum() / (2 * 9**2 * p.mean()),
            "peak": max(p),
            "coverage": sum(w >= threshold * max(p) for w in p) / 9,
            "mass_coverage": fewest / 9,
            "participation": 1 / sum(w**2 for w in p),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(got[name].values[index], value, rtol=1e-10, err_msg=name)
    for sample, query in np.ndindex(4, 2):
        heads = weights[sample, :, query]
        cosines = [
            heads[a] @ heads[b] / np.linalg.norm(heads[a]) / np.linalg.norm(heads[b])
            for a in range(3)
            for b in range(a)
        ]
        np.testing.assert_allclose(got["head_similarity"].values[sample, query], np.mean(cosines))


def test_keys_that_a_row_cannot_see_do_not_count():
    p = np.array([0.1, 0.6, 0.3])
    padded = np.array([[np.nan, 0.1, 0.6, np.nan, 0.3], np.full(5, np.nan)])
    got, expected = attention.statistics(rows(padded)), attention.statistics(rows(p[None]))
    for name in expected.data_vars:
        np.testing.assert_allclose(
            np.atleast_1d(got[name])[0], np.atleast_1d(expected[name])[0], err_msg=name
        )
        if name != "head_similarity":
            assert np.isnan(got[name].values[1])
    assert np.isnan(got["head_similarity"])  # one head is left


def test_rows_that_add_up_to_a_little_less_than_one():
    got = attention.statistics(rows([[0.5, 0.49995]]), mass=1.0)
    assert got["mass_coverage"].values.tolist() == [1.0]  # all there are
    got = attention.statistics(rows([[0.5, 0.49995, np.nan, np.nan]]), mass=1.0)
    assert got["mass_coverage"].values.tolist() == [1.0]


def test_the_order_of_the_axes_does_not_matter():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3))
    turned = weights.transpose(2, 0, 1).copy()  # not only a view
    got = attention.statistics(rows(turned, ("key", "sample", "head")))
    expected = attention.statistics(rows(weights, ("sample", "head", "key")))
    xr.testing.assert_allclose(got.transpose("sample", "head"), expected, rtol=1e-12)


def test_capture_gives_the_same_statistics_as_its_maps():
    model, x = small_vit().double(), torch.randn(2, 3, 32, 32).double()
    seen = attention.capture(model, x, maps=True, threshold=0.6, mass=0.5)
    again = attention.statistics(seen, threshold=0.6, mass=0.5)
    for name in set(again.data_vars) - {"distance"}:
        np.testing.assert_allclose(again[name], seen[name], rtol=1e-10, err_msg=name)
    assert set(again.data_vars) == set(seen.data_vars) - {"weight", "prediction"}


@pytest.mark.parametrize("keys", ["patches", "all"])
def test_object_mask_against_loops(keys):
    model, x = small_vit().double(), torch.randn(2, 3, 32, 32).double()  # patches of 8 x 8
    seen = attention.capture(model, x, maps=True, keys=keys)
    mask = np.zeros((2, 32, 32))
    mask[0, 8:24, :8] = 1  # patches 4 and 8
    mask[0, :4, 24:] = 1  # half of patch 3
    mask[0, 31, 31] = 1  # next to nothing of patch 15
    got = attention.statistics(seen, mask=mask, threshold=0.9)
    weight = seen["weight"].values
    for layer, head in np.ndindex(2, 3):
        p = weight[0, layer, head]
        patches = p[-16:]
        inside = [3, 4, 8]
        covered = np.mean([patches[i] >= 0.9 * max(p) for i in inside])
        np.testing.assert_allclose(
            values(got, "object_mass")[0, layer, head], patches[inside].sum()
        )
        np.testing.assert_allclose(values(got, "object_coverage")[0, layer, head], covered)
    assert np.isnan(values(got, "object_mass")[1]).all()  # no object in the second image
    assert np.isnan(values(got, "object_coverage")[1]).all()
    in_patches = np.zeros((2, 4, 4))
    in_patches[0].flat[[3, 4, 8]] = 1
    again = attention.statistics(seen, mask=in_patches, threshold=0.9)
    xr.testing.assert_equal(got, again)


def test_windows_have_no_place_on_the_object():
    seen = attention.capture(small_vit(), torch.randn(2, 3, 32, 32), maps=True)
    windowed = seen.assign_coords(n_windows=("layer", [1, 4]))
    got = attention.statistics(windowed, mask=np.ones((2, 4, 4)))
    for name in ("object_mass", "object_coverage"):
        assert got[name].isel(layer=0).notnull().all()
        assert got[name].isel(layer=1).isnull().all()


def test_bad_maps_and_masks_are_named():
    seen = attention.capture(small_vit(), torch.randn(2, 3, 32, 32), maps=True)
    with pytest.raises(ValueError, match="`maps`: expected `weight`"):
        attention.statistics(seen.drop_vars("weight"))
    with pytest.raises(ValueError, match="`maps`: expected rows of `weight` that add up to one"):
        attention.statistics(rows([[0.5, 0.2]]))
    with pytest.raises(ValueError, match="none negative"):
        attention.statistics(rows([[1.5, -0.5]]))
    with pytest.raises(ValueError, match=r"`mask`: expected \(2, height, width\), got \(3, 4, 4\)"):
        attention.statistics(seen, mask=np.ones((3, 4, 4)))
    with pytest.raises(ValueError, match="`maps`: with `mask`, expected grid_height"):
        attention.statistics(rows(np.eye(3)), mask=np.ones((1, 4, 4)))
    with pytest.raises(ValueError, match="`threshold`: expected a share"):
        attention.statistics(seen, threshold=-1)


def test_rollout_against_loops():
    model, x = small_vit(depth=3).double(), torch.randn(2, 3, 32, 32).double()
    seen = attention.capture(model, x, queries="all", keys="all", maps=True)
    got = attention.rollout(seen, residual=0.3)["rollout"]
    for sample in range(2):
        reached = np.eye(17)
        for layer in range(3):
            mean = sum(seen["weight"].values[sample, layer, head] for head in range(3)) / 3
            reached = (0.3 * np.eye(17) + 0.7 * mean) @ reached
            np.testing.assert_allclose(got.values[sample, layer], reached, rtol=1e-12)
    np.testing.assert_allclose(got.sum("key"), 1)


def test_rollout_of_uniform_attention():
    n, depth = 5, 4
    uniform = rows(np.full((depth, 2, n, n), 1 / n), ("layer", "head", "query", "key"))
    r = 0.5**depth
    expected = r * np.eye(n) + (1 - r) / n
    np.testing.assert_allclose(attention.rollout(uniform)["rollout"][-1], expected, rtol=1e-12)


def test_rollout_refuses_what_cannot_be_multiplied():
    model, x = small_vit(), torch.randn(1, 3, 32, 32)
    with pytest.raises(ValueError, match="`residual`: expected a share from 0 to 1, got 2"):
        attention.rollout(rows(np.eye(2)), residual=2)
    with pytest.raises(ValueError, match="`maps`: expected capture"):
        attention.rollout(attention.capture(model, x, maps=True))
    with pytest.raises(ValueError, match="17 queries and 16 keys"):
        attention.rollout(attention.capture(model, x, queries="all", maps=True))


def test_statistics_are_computed_where_the_weights_are():
    values = measure(torch.empty(2, 3, 1, 5, device="meta"), threshold=0.1, mass=0.9)
    assert {value.device.type for value in values.values()} == {"meta"}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    assert shapes.pop("head_similarity") == (2, 1)
    assert set(shapes.values()) == {(2, 3, 1)}
