"""A strength that a search found, on data with other classes."""

import pytest
import torch
import torch.nn.functional as F

from lab.training.strengths import rescale_strength


def push_on_features(classes, alpha):
    """Gradient of an orthogonal branch with respect to its features, at logits of 0."""
    torch.manual_seed(0)
    weight = torch.nn.init.orthogonal_(torch.empty(classes, 256, dtype=torch.float64))
    features = torch.zeros(256, dtype=torch.float64, requires_grad=True)

    # Without the label: every class as likely as not, the part that all classes share.
    logits = weight @ features
    loss = alpha * F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))
    return torch.autograd.grad(loss, features)[0].norm().item()


@pytest.mark.parametrize("classes", [10, 20, 100])
def test_a_rescaled_strength_pushes_as_hard(classes):
    alpha = rescale_strength(4.642, classes=classes, found_with=100)
    assert push_on_features(classes, alpha) == pytest.approx(push_on_features(100, 4.642), rel=5e-3)


def test_the_strength_as_it_was_is_three_times_too_strong():
    ratio = push_on_features(10, 1.0) / push_on_features(100, 1.0)
    assert ratio == pytest.approx(10**0.5)
