"""Reading attention of models that train, at low precision, compiled or checkpointed."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import attention
from tests.helpers.small_vit import all_maps, small_vit


def test_training_is_bitwise_the_same_and_rows_are_those_before_dropout():
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6) % 5

    def train(captured):
        model = small_vit(attn_drop_rate=0.5, proj_drop_rate=0.2).train()
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(1)
        for _ in range(3):
            if captured:
                with attention.capturing(model, queries="all", maps=True, keys="all") as recording:
                    output = model(x)
                rows = recording.dataset()["weight"].sum("key")
                np.testing.assert_allclose(rows, 1, atol=1e-5)
            else:
                output = model(x)
            optimizer.zero_grad()
            F.cross_entropy(output, y).backward()
            optimizer.step()
        return model.state_dict()

    plain, captured = train(False), train(True)
    assert all(torch.equal(plain[name], captured[name]) for name in plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_gives_rows_in_full_precision(dtype):
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    exact = all_maps(model, x)
    with torch.autocast("cpu", dtype):
        mixed = all_maps(model, x)
    low = all_maps(copy.deepcopy(model).to(dtype), x.to(dtype))
    for rough in (mixed, low):
        np.testing.assert_allclose(rough.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose(rough, exact, atol=0.05)


@pytest.mark.parametrize("queries", ["cls", "all"])
def test_statistics_are_in_full_precision_under_autocast(queries):
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        seen = attention.capture(model, x, queries=queries, maps=True)
    exact = attention.statistics(seen)  # of the same weights, in float64
    for name in set(exact.data_vars) - {"distance"}:
        np.testing.assert_allclose(seen[name], exact[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_compiled_model_runs_uncompiled_once_and_is_not_compiled_again():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    plain, x = small_vit(), torch.randn(2, 3, 32, 32)
    expected = attention.capture(plain, x)
    model = torch.compile(copy.deepcopy(plain), backend=backend)
    with torch.no_grad():
        before = model(x)
        count = len(compiled)
        seen = attention.capture(model, x)
        after = model(x)
    assert count == len(compiled) > 0
    assert seen.identical(expected)
    assert torch.equal(before, after)
    blocks = copy.deepcopy(plain)
    for block in blocks.blocks:
        block.compile(backend=backend)
    with torch.no_grad():
        blocks(x)
    assert attention.capture(blocks, x).identical(expected)


def test_checkpointed_blocks_are_read_once():
    model, x = small_vit().train(), torch.randn(2, 3, 32, 32, requires_grad=True)
    model.set_grad_checkpointing()
    with attention.capturing(model) as recording:
        model(x).sum().backward()
    assert recording.dataset()["layer"].values.tolist() == ["blocks.0.attn", "blocks.1.attn"]
