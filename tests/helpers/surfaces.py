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
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n, inputs, generator=generator, dtype=dtype)
    return x, torch.randint(0, classes, (n,), generator=generator)


def axes_by_hand(model, names, seed):
    """Gaussian, Gram-Schmidt, then filter by filter, in numpy loops."""
    weights = {name: dict(model.named_parameters())[name].detach().numpy() for name in names}
    axes = [_draw_by_hand(weights, seed, axis) for axis in range(2)]

    first = np.concatenate([axes[0][name].ravel() for name in names])
    second = np.concatenate([axes[1][name].ravel() for name in names])
    share = first @ second / (first @ first)

    for name, weight in weights.items():
        axes[1][name] = axes[1][name] - share * axes[0][name]
        for axis in axes:
            for row in range(len(weight)):
                axis[name][row] *= np.linalg.norm(weight[row]) / np.linalg.norm(axis[name][row])
    return axes


def _draw_by_hand(weights, seed, axis):
    numbers = {}
    for name, weight in weights.items():
        # The seed of a tensor depends on its name: leaving one out changes no other.
        key = hashlib.sha256(f"{seed}/{axis}/{name}".encode()).digest()[:8]
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)

        # Directions are held at half precision.
        numbers[name] = drawn.half().double().numpy()
    return numbers
