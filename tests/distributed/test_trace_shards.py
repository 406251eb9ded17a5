"""Precision and bystanders of a sharded model, in two gloo processes."""

import numpy as np
import pytest
import torch

from tests.distributed.ranks_shards import CASES
from tests.helpers.launch import run_ranks
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("shards") / "result"
    run_ranks("ranks_shards.py", str(output))
    return [torch.load(f"{output}.{rank}", weights_only=False) for rank in range(2)]


def cosine_of_halves(dtype):
    """Each loss differentiated by itself on each half of the batch, averaged in float64."""
    model = make_network(dtype=dtype, dropout=0.0).eval()
    x, y = make_batch(size=64, dtype=dtype)
    columns = []
    for index in range(2):
        halves = [
            gradients_of(two_losses(model, a, b)[index], model)
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True)
        ]
        shared = [name for name in halves[0] if name.startswith(("token", "stem"))]
        columns.append(
            torch.cat([sum(half[name].double() for half in halves).flatten() for name in shared])
        )
    return torch.cosine_similarity(*columns, dim=0).item()


@pytest.mark.parametrize("case", CASES)
def test_the_size_of_the_auxiliary_gradient_does_not_matter(results, case):
    dtype, inner, _, _ = CASES[case]
    expected = cosine_of_halves(inner or dtype)
    exact = (inner or dtype) == torch.float32
    for rank in results:
        np.testing.assert_allclose(rank[case][0], expected, atol=1e-5 if exact else 0.005)


@pytest.mark.parametrize("case", CASES)
def test_what_lands_in_grad_is_bitwise_that_of_the_sum(results, case):
    assert all(rank[case][1] for rank in results)


def test_a_tensor_parallel_model_is_refused_by_every_verb(results):
    for rank in results:
        texts = rank["tensor parallel"]
        for verb in ("Trace", "Trace, activation"):
            assert "got DTensors without it (tensor parallel)" in texts[verb]
        for verb in ("compare", "noise", "initial_norm"):
            assert "`model`: expected a module that is not sharded" in texts[verb]


def test_a_fully_sharded_model_is_for_the_trace_alone(results):
    for rank in results:
        texts = rank["fully_shard"]
        assert texts["Trace"] == texts["Trace, activation"] == ""
        for verb in ("compare", "noise", "initial_norm"):
            assert "`model`: expected a module that is not sharded" in texts[verb]


def test_a_branch_beside_the_model_gets_its_gradient_once(results):
    for rank in results:
        traced, plain = rank["beside"]
        assert torch.equal(traced, plain)
