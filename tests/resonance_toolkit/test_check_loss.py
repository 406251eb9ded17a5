"""What is no loss, and targets that torch's losses do not stand for, are refused by every verb."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradients
import landscape
import nudging
import probes
from resonance_toolkit import count_arguments

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 1])


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))


def evaluate_branches(data, loss):
    model = small_net()
    return probes.attach(model, "0", n=2, loss=loss).evaluate(data)


VERBS = {
    "grid": lambda data, loss: landscape.grid(small_net(), data, size=3, loss=loss),
    "curvature": lambda data, loss: landscape.curvature(small_net(), data, k=1, loss=loss),
    "nudge": lambda data, loss: nudging.nudge(
        small_net(), data, nudging.backprop(), "0", loss=loss
    ),
    "initial_norm": lambda data, loss: gradients.initial_norm(small_net(), data, loss=loss),
    "evaluate": evaluate_branches,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "loss",
    [
        nn.BCEWithLogitsLoss(),
        F.cross_entropy,
        partial(F.binary_cross_entropy_with_logits, reduction="mean"),
    ],
)
def test_logits_as_labels_are_refused_under_torchs_own_losses(verb, loss):
    logits = 3 * torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=r"^`(data|y)`: expected targets from 0 to 1 for .*logits"):
        VERBS[verb]((X, logits), loss)


@pytest.mark.parametrize("verb", VERBS)
def test_shares_and_classes_are_taken(verb):
    VERBS[verb]((X, torch.rand(6, 3)), nn.BCEWithLogitsLoss())
    VERBS[verb]((X, Y), F.cross_entropy)
    VERBS[verb]((X, 9 * torch.rand(6, 3)), F.mse_loss)  # real numbers with a loss for them


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "evaluate"])
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss, r"got the class CrossEntropyLoss: make one, as CrossEntropyLoss\(\)"),
        ("ce", r"expected a callable \(outputs, targets\), got str"),
    ],
)
def test_what_is_no_loss_is_said(verb, loss, message):
    with pytest.raises(TypeError, match=f"^`loss`: .*{message}"):
        VERBS[verb]((X, Y), loss)


def test_a_nudge_tells_that_it_takes_no_loss_that_runs_the_model():
    with pytest.raises(TypeError, match=r"^`loss`: .* with three arguments; outputs are computed"):
        VERBS["nudge"]((X, Y), lambda model, x, y: F.cross_entropy(model(x), y))


def test_arguments_are_counted():
    assert count_arguments(lambda outputs, targets, scale=1: 0) == 2
    assert count_arguments(nn.MSELoss()) == 2
    assert count_arguments(lambda *arguments: 0) is None
