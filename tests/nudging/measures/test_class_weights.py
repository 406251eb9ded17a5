"""Losses that weigh classes are kept: each term of a sample carries the weight of its class."""

import numpy as np
import pytest
import torch
from torch import nn

import nudging

WEIGHTS = torch.tensor([0.2, 1.0, 3.5], dtype=torch.float64)


class Tagger(nn.Module):
    """Two linear layers at every position, classes in the second axis, as torch expects them."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        logits = self.head(self.hidden(x))
        return logits.movedim(-1, 1)


def make_problem(shape):
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    x = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    return Tagger().double(), x, torch.randint(0, 3, shape, generator=generator)


def weighted_terms(logits, classes):
    """Oracle in numpy: `-w[y] log softmax(logits)[y]`, with the classes in the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    log_shares = np.log(exponentials / exponentials.sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_shares, classes[..., None], -1)[..., 0]
    return -WEIGHTS.numpy()[classes] * chosen


def loss_by_hand(model, hidden, classes, counted):
    """The mean over each sample's counted positions; not divided by the sum of their weights."""
    weight, bias = (p.detach().numpy() for p in (model.head.weight, model.head.bias))
    terms = weighted_terms(hidden @ weight.T + bias, classes) * counted
    return terms.reshape(len(terms), -1).sum(1) / counted.reshape(len(terms), -1).sum(1)


@pytest.mark.parametrize("shape", [(8,), (8, 5)])
def test_nudging_a_weighted_loss_changes_the_weighted_terms(shape):
    model, x, y = make_problem(shape)
    ignored = 1 if len(shape) > 1 else -100  # torch's "none" leaves a 0 for an ignored sample
    loss = nn.CrossEntropyLoss(WEIGHTS, ignore_index=ignored)
    y[..., :1] = 0 if len(shape) > 1 else y[..., :1]  # every sample has a position that counts

    result = nudging.nudge(
        model,
        (x, y),
        nudging.random(2),
        "hidden",
        eta=0.3,
        loss=loss,
        samples=None,
        normalisation="none",
        keep_samples=True,
    )

    state = nudging.observe(model, x, y, "hidden", loss=loss)
    before = state.hidden["hidden"].numpy()
    after = before - 0.3 * nudging.random(2)(state)["hidden"].numpy()
    classes = y.numpy()
    counted = classes != ignored
    before, after = (loss_by_hand(model, h, classes, counted) for h in (before, after))
    np.testing.assert_allclose(result["loss"], before.mean(), rtol=1e-12)
    np.testing.assert_allclose(result["sample_change"][0, 0], after - before, rtol=1e-9)
    assert result.attrs["loss"] == "CrossEntropyLoss"


def test_a_weighted_mean_is_the_same_as_its_terms():
    model, x, y = make_problem((8,))
    results = [
        nudging.measure(model, (x, y), nudging.backprop(), "hidden", loss=loss, samples=None)
        for loss in (
            nn.CrossEntropyLoss(WEIGHTS),
            nn.CrossEntropyLoss(WEIGHTS, reduction="none"),
        )
    ]
    assert results[0].identical(results[1])
