"""Gradients at features, against graphs that are cut by hand."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradients import Trace
from tests.helpers.state import snapshot

LAYERS = ["blocks.0", "blocks.2"]


class Chain(nn.Module):
    """Three blocks; the auxiliary loss reads the first and the last of them in hooks."""

    def __init__(self, inplace=False, checkpointed=False):
        super().__init__()
        make = lambda: nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))  # noqa: E731
        self.blocks = nn.ModuleList([make() for _ in range(3)])
        self.act = nn.ReLU(inplace)
        self.head = nn.Linear(5, 2)
        self.checkpointed = checkpointed

    def forward(self, x, cut=False):
        features = []
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
            if cut:
                x.retain_grad()
            features.append(x * 1.0)  # before an operation in place
            x = self.act(x)
        return self.head(x), features


def make_chain(**options):
    torch.manual_seed(0)
    return Chain(**options).double()


def losses(model, x):
    logits, features = model(x)
    return logits.square().mean(), features[0].sin().mean() + features[2].cos().mean()


def oracle(model, x):
    """What the branches of a layer send to it, and what else arrives there."""
    model = copy.deepcopy(model)
    leaves, h = [], x
    for block in model.blocks:
        h = block(h)
        leaves.append(h)
        h = h.relu()
    first, last = leaves[0], leaves[2]
    cut = [t.detach().requires_grad_() for t in (first, last)]
    branch = torch.autograd.grad(cut[0].sin().mean() + cut[1].cos().mean(), cut)
    total = model.head(h).square().mean() + first.sin().mean() + last.cos().mean()
    whole = torch.autograd.grad(total, [first, last])
    return [(t - b, b) for t, b in zip(whole, branch, strict=True)]


@pytest.mark.parametrize("options", [{}, {"inplace": True}, {"checkpointed": True}])
def test_features_receive_what_the_cut_graph_gives(options):
    model, x = make_chain(**options), torch.randn(6, 5).double()
    expected = oracle(model, x)
    with Trace(model, level="activation", layers=LAYERS) as trace:
        for _ in range(2):  # a recomputed block must not be heard as a new forward
            trace.backward(*losses(model, x))
    found = trace.to_dataset()
    for layer, (main, branch) in zip(LAYERS, expected, strict=True):
        at = found.sel(layer=layer)
        np.testing.assert_allclose(at["dot"], [(main * branch).sum().item()] * 2, rtol=1e-10)
        np.testing.assert_allclose(at["norm_main"], [main.norm().item()] * 2, rtol=1e-10)
        np.testing.assert_allclose(at["norm_aux"], [branch.norm().item()] * 2, rtol=1e-10)


def test_micro_batches_of_an_update_add_up():
    model, x = make_chain().eval(), torch.randn(6, 5).double()
    whole = Trace(model, level="activation", layers=LAYERS)
    whole.backward(*losses(model, x))
    parts = Trace(model, level="activation", layers=LAYERS)
    for index, piece in enumerate(x.split(2)):
        parts.backward(*(loss / 3 for loss in losses(model, piece)), update=index == 2)
    joined = Trace(model, level="activation", layers=LAYERS)
    for piece in x.split(2):
        (joined.join(*losses(model, piece)) / 3).backward()
    joined.advance()
    for other in (parts, joined):
        for name in ("dot", "norm_main", "norm_aux", "loss_main", "cosine_total"):
            wanted = whole.to_dataset()[name]
            np.testing.assert_allclose(other.to_dataset()[name], wanted, rtol=1e-10)


def test_training_is_bitwise_what_it_is_without():
    states = []
    for traced in (False, True):
        model = make_chain()
        optimizer = torch.optim.AdamW(model.parameters())
        trace = Trace(model, 2, level="activation", layers=LAYERS)
        for seed in range(4):
            x = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)).double()
            main, auxiliary = losses(model, x)
            optimizer.zero_grad()
            trace.backward(main, auxiliary) if traced else (main + auxiliary).backward()
            optimizer.step()
        states.append(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))
    assert list(trace.to_dataset()["step"]) == [0, 2]


def test_a_layer_without_a_branch_is_nan():
    model, x = make_chain(), torch.randn(6, 5).double()
    trace = Trace(model, level="activation", layers="blocks.*")
    trace.backward(*losses(model, x))
    assert np.isnan(trace.to_dataset()["cosine"].values[0]).tolist() == [False, True, False]


def test_what_cannot_be_told_apart_is_refused():
    model, x = make_chain(), torch.randn(6, 5).double()
    trace = Trace(model, level="activation", layers="blocks.2")
    logits, _ = model(x)
    with pytest.raises(ValueError, match=r"above 'blocks\.2' the losses share a computation"):
        trace.backward(logits.square().mean(), logits.sin().mean())
    with pytest.raises(ValueError, match=r"no gradient of the main loss was seen at blocks\.2"):
        trace.backward(model.head(x).sum(), x.sum())
    assert all(p.grad is None for p in model.parameters())


def test_inside_a_compiled_model_layers_are_refused():
    torch._dynamo.reset()
    model, x = make_chain(), torch.randn(6, 5).double()
    compiled = torch.compile(model, backend="aot_eager")
    trace = Trace(compiled, level="activation", layers=LAYERS)
    with pytest.raises(ValueError, match="Inside a compiled model layers are invisible"):
        trace.backward(*losses(compiled, x))
    with torch.compiler.set_stance("force_eager"):
        trace.backward(*losses(compiled, x))
    assert np.isfinite(trace.to_dataset()["cosine"]).all()
    torch._dynamo.reset()


def test_hooks_go_with_the_trace_and_stay_off_copies():
    model, x = make_chain(), torch.randn(6, 5).double()
    clean = snapshot(model)["hooks"]
    trace = Trace(model, level="activation", layers=LAYERS)
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    main, auxiliary = losses(model, x)
    for other in (copied, pickled):
        losses(other, x)
    trace.backward(main, auxiliary)
    assert np.isfinite(trace.to_dataset()["cosine"]).all()
    assert snapshot(model)["hooks"] != clean
    del trace
    gc.collect()
    assert snapshot(model)["hooks"] == clean
    with pytest.raises(KeyboardInterrupt), Trace(model, level="activation", layers=LAYERS):
        raise KeyboardInterrupt
    assert snapshot(model)["hooks"] == clean


@pytest.mark.parametrize("separate", [True, False])
def test_separate_is_refused_for_activations(separate):
    with pytest.raises(ValueError, match="`separate`: expected None with level='activation'"):
        Trace(make_chain(), level="activation", layers=LAYERS, separate=separate)
