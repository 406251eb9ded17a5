"""A small network, data for it, and random axes written out in numpy."""

import hashlib

import numpy as np
import torch
from torch import nn


def make_mlp(inputs=40, width=16, classes=3, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, classes)).to(dtype)


def make_data(n=30, inputs=40, classes=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, inputs, generator=g, dtype=dtype)
    return x, torch.randint(0, classes, (n,), generator=g)


def axes_by_hand(model, names, seed, how="filter"):
    """Gaussian, Gram-Schmidt, then filter by filter, in numpy loops."""
    weights = {n: dict(model.named_parameters())[n].detach().numpy() for n in names}
    axes = []
    for axis in range(2):
        drawn = {}
        for name, weight in weights.items():
            key = hashlib.sha256(f"{seed}/{axis}/{name}".encode()).digest()[:8]
            g = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
            numbers = torch.randn(weight.shape, generator=g, dtype=torch.float64)
            drawn[name] = numbers.half().double().numpy()
        axes.append(drawn)
    first = np.concatenate([axes[0][n].ravel() for n in names])
    second = np.concatenate([axes[1][n].ravel() for n in names])
    share = first @ second / (first @ first)
    for name, weight in weights.items():
        axes[1][name] = axes[1][name] - share * axes[0][name]
        for drawn in axes:
            for row in range(len(weight)):
                scale = np.linalg.norm(weight[row]) / np.linalg.norm(drawn[name][row])
                drawn[name][row] *= scale
    return axes
