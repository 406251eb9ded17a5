"""A small model with the traps of hooks in it, and its gradients computed without any."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.helpers.probe_reference import layer_loss, weights_of

LAYERS = ["first", "second"]


class Stages(nn.Module):
    """Two linear stages with an in-place ReLU after each; either may be checkpointed."""

    def __init__(self, mode=None):
        super().__init__()
        self.mode = mode  # None, "reentrant" or "non-reentrant": how the stages are checkpointed
        self.first = nn.Linear(4, 6)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def stage(self, x):
        return self.act(self.second(self.act(self.first(x))))

    def forward(self, x):
        if self.mode is not None and self.training:
            hidden = checkpoint(self.stage, x, use_reentrant=self.mode == "reentrant")
        else:
            hidden = self.stage(x)
        return self.head(hidden)


def make(mode=None):
    """The model, and a batch of seven samples in three classes."""
    torch.manual_seed(0)
    model = Stages(mode)
    x = torch.randn(7, 4, requires_grad=True)
    y = torch.arange(7) % 3
    return model, x, y


def expected_gradients(model, probe, x, y):
    """Without hooks: each stage by hand, its features taken before the in-place ReLU."""
    first = F.linear(x, model.first.weight, model.first.bias)
    second = F.linear(first.relu(), model.second.weight, model.second.bias)
    logits = F.linear(second.relu(), model.head.weight, model.head.bias)

    total = F.cross_entropy(logits, y)
    for layer, features in zip(LAYERS, (first, second), strict=True):
        total = total + layer_loss(features, weights_of(probe, layer), y, "bce")
    return torch.autograd.grad(total, _parameters(model, probe))


def probe_gradients(call, model, probe, x, y):
    """Of the same objective, by the probe; `call` may be a compiled or wrapped model."""
    total = F.cross_entropy(call(x), y) + probe.loss(y)
    return torch.autograd.grad(total, _parameters(model, probe))


def assert_exact(call, model, probe, x, y, **tolerance):
    gradients = probe_gradients(call, model, probe, x, y)
    torch.testing.assert_close(gradients, expected_gradients(model, probe, x, y), **tolerance)


def _parameters(model, probe):
    return [*model.parameters(), *probe.parameters()]
