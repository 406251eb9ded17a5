"""What the benchmark of surfaces measures on, beside the backbones of the laboratory."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def narrow_mlp() -> nn.Sequential:
    """3072-6x64-10, most of whose work is its first layer."""
    widths = [3072, *[64] * 6, 10]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int = 150) -> None:
    """A few steps of Adam, the same every time."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        rows = torch.randint(0, len(x), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
