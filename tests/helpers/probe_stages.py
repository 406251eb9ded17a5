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
        self.first, self.act = nn.Linear(4, 6), nn.ReLU(inplace=True)
        self.second, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.mode = mode

    def stage(self, x):
        return self.act(self.second(self.act(self.first(x))))

    def forward(self, x):
        if self.mode is not None and self.training:
            x = checkpoint(self.stage, x, use_reentrant=self.mode == "reentrant")
        else:
            x = self.stage(x)
        return self.head(x)


def make(mode=None):
    torch.manual_seed(0)
    return Stages(mode), torch.randn(7, 4, requires_grad=True), torch.arange(7) % 3


def expected_gradients(model, probe, x, y):
    """Without hooks: each stage by hand, its features taken before the in-place ReLU."""
    first = F.linear(x, model.first.weight, model.first.bias)
    second = F.linear(first.relu(), model.second.weight, model.second.bias)
    main = F.cross_entropy(F.linear(second.relu(), model.head.weight, model.head.bias), y)
    parts = zip(LAYERS, (first, second), strict=True)
    total = main + sum(layer_loss(h, weights_of(probe, k), y, "bce") for k, h in parts)
    return torch.autograd.grad(total, list(model.parameters()) + list(probe.parameters()))


def found_gradients(call, model, probe, x, y):
    total = F.cross_entropy(call(x), y) + probe.loss(y)
    return torch.autograd.grad(total, list(model.parameters()) + list(probe.parameters()))


def assert_exact(call, model, probe, x, y, **tolerance):
    found = found_gradients(call, model, probe, x, y)
    torch.testing.assert_close(found, expected_gradients(model, probe, x, y), **tolerance)
