"""A residual network without nonlinearities, whose gradients are known in closed form."""

import torch
from torch import nn


def make_linear_network(
    width: int, depth: int, *, targets: int, scale: float, seed: int = 0
) -> nn.Sequential:
    """Make a network of linear residual blocks `h + A h`, for problems with a known costate.

    Args:
        width: Of the input and of every hidden state.
        depth: Number of blocks.
        targets: Numbers in one output.
        scale: Norm of `A h` in units of that of `h`, about.
        seed: Decides the weights.
    """
    generator = torch.Generator().manual_seed(seed)

    blocks = [nn.Linear(width, width, bias=False) for _ in range(depth)]
    for block in blocks:
        noise = torch.randn(width, width, generator=generator) * scale / width**0.5
        block.weight.data = torch.eye(width) + noise

    head = nn.Linear(width, targets, bias=False)
    head.weight.data = torch.randn(targets, width, generator=generator) / width**0.5

    model = nn.Sequential()
    model.add_module("blocks", nn.Sequential(*blocks))
    model.add_module("head", head)
    return model
