"""The curvature of data that lie in two processes, against that of all of them in one."""

import numpy as np
import pytest
import torch
import xarray as xr

import landscape
from tests.distributed.ranks_curvature import SETTINGS
from tests.helpers.dense_curvature import make
from tests.helpers.launch import run_ranks


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("ranks") / "result"
    run_ranks("ranks_curvature.py", str(output))
    return [torch.load(f"{output}.{rank}", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", SETTINGS)
def test_both_processes_have_the_curvature_of_all_samples(results, name):
    model, data = make()
    expected = landscape.curvature(model, data, samples=None, **SETTINGS[name])

    first, second = (xr.Dataset.from_dict(rank[name]) for rank in results)
    xr.testing.assert_identical(first, second)
    assert first.attrs["n_samples"] == 20

    tolerance = 1e-5 if name == "finite difference" else 1e-8
    for variable in ("largest", "smallest", "trace", "density"):
        np.testing.assert_allclose(first[variable], expected[variable], rtol=tolerance, atol=1e-6)
