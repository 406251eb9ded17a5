"""Cross-entropy in chunks against torch's own, its slopes, and second derivatives."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import landscape
from landscape._curvature import chunked_cross_entropy
from landscape._curvature.chunked_cross_entropy import ChunkingCrossEntropy

WEIGHT = torch.rand(7, generator=torch.Generator().manual_seed(0)).double() + 0.5


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(chunked_cross_entropy, "_FEWEST_LOGITS", 1)
    monkeypatch.setattr(chunked_cross_entropy, "_LOGITS_AT_A_TIME", 15)  # two rows of seven


def logits_and_targets(*positions):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(5, 7, *positions, generator=generator, dtype=torch.float64)
    targets = torch.randint(7, (5, *positions), generator=generator)
    targets.view(-1)[1] = -100
    return logits.requires_grad_(), targets


@pytest.mark.parametrize("positions", [(), (4,), (2, 3)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_losses_slopes_and_their_slopes_are_torchs(positions, reduction, weight):
    logits, targets = logits_and_targets(*positions)
    direction = torch.randn_like(logits)

    def differentiate():
        loss = F.cross_entropy(logits, targets, weight, reduction=reduction).square().sum()
        (slopes,) = torch.autograd.grad(loss, logits, create_graph=True)
        (along,) = torch.autograd.grad(slopes, logits, direction)
        return loss.detach(), slopes.detach(), along

    expected = differentiate()
    with ChunkingCrossEntropy():
        actual = differentiate()
    for here, there in zip(actual, expected, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def test_what_it_does_not_do_is_left_to_torch():
    logits, targets = logits_and_targets()
    soft = torch.full((5, 7), 1 / 7).double()
    with ChunkingCrossEntropy():
        smoothed = F.cross_entropy(logits, targets, label_smoothing=0.1)
        by_share = F.cross_entropy(logits, soft)
        ignored = F.cross_entropy(logits, targets.clamp_min(0), ignore_index=3)
    torch.testing.assert_close(smoothed, F.cross_entropy(logits, targets, label_smoothing=0.1))
    torch.testing.assert_close(by_share, F.cross_entropy(logits, soft))
    torch.testing.assert_close(
        ignored, F.cross_entropy(logits, targets.clamp_min(0), ignore_index=3)
    )


def test_out_of_range_targets_are_still_refused():
    logits, _ = logits_and_targets()
    with ChunkingCrossEntropy(), pytest.raises((IndexError, RuntimeError)):
        F.cross_entropy(logits, torch.full((5,), 9))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 3), nn.Linear(3, 11)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).tanh())


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
def test_curvature_of_tokens_is_the_same_in_chunks(matrix, monkeypatch):
    torch.manual_seed(0)
    model = Language().double()
    tokens = torch.randint(11, (6, 5))
    labels = tokens.roll(1, 1)
    labels[:, 0] = -100
    settings = {"k": 3, "matrix": matrix, "tolerance": 1e-9, "density_runs": 0, "trace_probes": 0}

    in_chunks = landscape.curvature(model, (tokens, labels), **settings)
    monkeypatch.setattr(chunked_cross_entropy, "_FEWEST_LOGITS", 2**62)
    whole = landscape.curvature(model, (tokens, labels), **settings)

    np.testing.assert_allclose(in_chunks["largest"], whole["largest"], rtol=1e-7)
