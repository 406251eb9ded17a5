"""Activation checkpointing: layers run again, and nothing may notice."""

import pytest
import torch
import xarray as xr
from torch.utils.checkpoint import checkpoint

from gradients import Trace
from tests.helpers.small_network import TwoOutputs, make_batch, make_network, two_losses
from tests.helpers.traced_training import assert_same_bits, train


class Checkpointed(TwoOutputs):
    reentrant, preserve_rng_state = False, True

    def forward(self, x):
        def block(x):
            return self.drop((self.stem(x) + self.token).relu())

        options = {"preserve_rng_state": self.preserve_rng_state}
        features = checkpoint(block, x, use_reentrant=self.reentrant, **options)
        return self.head(self.late(features)), self.side(features)


def make_checkpointed(dtype=torch.float64, **settings):
    torch.manual_seed(0)
    model = Checkpointed().to(dtype)
    vars(model).update(settings)
    return model


@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpointing_moves_neither_batch_norm_nor_dropout(preserve_rng_state):
    states, random = [], []
    for traced in (False, True):
        model = make_checkpointed(torch.float32, preserve_rng_state=preserve_rng_state)
        backward = Trace(model).backward if traced else (lambda a, b: (a + b).backward())
        states.append(train(backward, model))
        random.append(torch.get_rng_state())
    assert_same_bits(*states)
    assert torch.equal(*random)


def test_checkpointing_gives_the_same_numbers():
    results = []
    for model in (make_network(), make_checkpointed()):
        torch.manual_seed(3)
        trace = Trace(model)
        trace.backward(*two_losses(model, *make_batch()))
        results.append(trace.to_dataset().drop_attrs(deep=False))
    xr.testing.assert_allclose(*results, rtol=1e-12)


def test_reentrant_checkpointing_is_refused():
    model = make_checkpointed(reentrant=True)
    x, y = make_batch()
    losses = two_losses(model, x.requires_grad_(), y)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        Trace(model).backward(*losses)
    assert all(p.grad is None for p in model.parameters())
