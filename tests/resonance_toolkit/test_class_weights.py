"""Losses that weigh classes: as torch has it of all samples in one batch, however they are cut."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import gradients
import landscape
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
    """Each sample's share of `sum(w l) / sum(w)` over all positions that count."""
    weight, bias = (p.detach().numpy() for p in (model.head.weight, model.head.bias))
    terms = weighted_terms(hidden @ weight.T + bias, classes) * counted
    total_weight = (WEIGHTS.numpy()[classes] * counted).sum()
    return terms.reshape(len(terms), -1).sum(1) * len(terms) / total_weight


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
        batch_size=3,
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


def test_the_terms_themselves_are_asked_for_by_reduction_none():
    model, x, y = make_problem((8,))
    losses = [
        nudging.nudge(model, (x, y), nudging.backprop, "hidden", loss=loss, samples=None)["loss"]
        for loss in (
            nn.CrossEntropyLoss(WEIGHTS),
            nn.CrossEntropyLoss(WEIGHTS, reduction="none"),
        )
    ]
    ratio = len(y) / WEIGHTS[y].sum().item()
    np.testing.assert_allclose(losses[0], losses[1] * ratio, rtol=1e-12)


WAYS = {
    "module": lambda: nn.CrossEntropyLoss(WEIGHTS),
    "partial": lambda: partial(F.cross_entropy, weight=WEIGHTS),
    "smoothing": lambda: nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2),
    "ignored": lambda: nn.CrossEntropyLoss(WEIGHTS, ignore_index=2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(11,), (7, 5)])
def test_every_verb_has_the_loss_of_one_batch_whatever_the_batch_size(way, shape):
    model, x, y = make_problem(shape)
    y.view(-1)[[0, 3, 9]] = -100 if way != "ignored" else 2
    y[1] = -100 if way != "ignored" else 2  # a whole sample, which is left out
    loss = WAYS[way]()

    weights = list(model.parameters())
    one_batch = loss(model(x), y)
    expected = one_batch.item()
    norm = torch.stack([g.square().sum() for g in torch.autograd.grad(one_batch, weights)])

    for batch_size in (1, 3, 11):
        common = {"loss": loss, "samples": None, "batch_size": batch_size}
        surface = landscape.grid(model, (x, y), size=3, metrics={"again": loss}, **common)
        for name in ("loss", "again"):
            centre = surface[name].sel(alpha=0, beta=0)
            np.testing.assert_allclose(centre, expected, rtol=1e-12)
        assert np.isnan(surface["loss_se"]).all()

        nudges = nudging.nudge(model, (x, y), nudging.backprop, "hidden", **common)
        np.testing.assert_allclose(nudges["loss"], expected, rtol=1e-12)
        norms = gradients.initial_norm(model, (x, y), **common)
        np.testing.assert_allclose(norms["loss"], expected, rtol=1e-12)
        np.testing.assert_allclose(norms["norm_backbone"], norm.sum().sqrt().item(), rtol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("as_loader", [False, True])
def test_curvature_is_that_of_one_batch_whatever_the_batch_size(way, as_loader):
    model, x, y = make_problem((11,))
    y[0] = -100 if way != "ignored" else 2
    loss = WAYS[way]()

    head = model.head.weight.detach().clone()
    hidden, bias = model.hidden(x).detach(), model.head.bias.detach()
    hessian = torch.autograd.functional.hessian(lambda w: loss(hidden @ w.T + bias, y), head)
    expected = torch.linalg.eigvalsh(hessian.reshape(head.numel(), -1))[-1].item()

    for batch_size in (1, 3, 11):
        data = (x, y)
        if as_loader:
            data = DataLoader(list(zip(x, y, strict=True)), batch_size=batch_size)
        curvature = landscape.curvature(
            model, data, loss=loss, samples=None, batch_size=batch_size, over="head.weight", k=1
        )
        np.testing.assert_allclose(curvature["largest"][0], expected, rtol=2e-3)


def test_distributions_are_divided_by_their_number_as_torch_has_it():
    model, x, _ = make_problem((11,))
    shares = torch.rand(11, 3, dtype=torch.float64).softmax(1)
    loss = nn.CrossEntropyLoss(WEIGHTS)
    expected = loss(model(x), shares).item()

    for batch_size in (1, 4, 11):
        common = {"loss": loss, "samples": None, "batch_size": batch_size}
        surface = landscape.grid(model, (x, shares), size=3, **common)
        np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-12)
        nudges = nudging.nudge(model, (x, shares), nudging.backprop, "hidden", **common)
        np.testing.assert_allclose(nudges["loss"], expected, rtol=1e-12)


def test_a_plain_mean_over_tokens_does_not_depend_on_the_batch_size_either():
    model, x, y = make_problem((7, 5))
    y[0, 1:] = -100
    y[3] = -100
    counted = [i for i in range(7) if i != 3]
    expected = np.mean([F.cross_entropy(model(x[[i]]), y[[i]]).item() for i in counted])

    for batch_size in (1, 2, 7):
        common = {"loss": nn.CrossEntropyLoss(), "samples": None, "batch_size": batch_size}
        surface = landscape.grid(model, (x, y), size=3, **common)
        np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-12)
        nudges = nudging.nudge(model, (x, y), nudging.backprop, "hidden", **common)
        np.testing.assert_allclose(nudges["loss"], expected, rtol=1e-12)
        norms = gradients.initial_norm(model, (x, y), **common)
        np.testing.assert_allclose(norms["loss"], expected, rtol=1e-12)
