"""Models with early exits, and ways to shard them."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.helpers.exit_models import BLOCKS, TextModel

WEIGHTS = (0.5, 0.2, 0.3)


class Tied(TextModel):
    """The head's weights are those of the embedding."""

    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


class Normed(TextModel):
    """Blocks and a final norm in a body of their own, the head outside of it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*self.blocks, nn.LayerNorm(6))
        del self.blocks

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


def make(scenario):
    """A model, the same on every rank, and the names of its blocks."""
    torch.manual_seed(0)
    if scenario.startswith("tied"):
        return Tied().double(), BLOCKS
    if scenario.startswith("body"):
        return Normed().double(), [f"body.{i}" for i in range(3)]
    return TextModel().double(), BLOCKS


def shard(scenario, model, layers, **options):
    blocks = [model.get_submodule(name) for name in layers]
    if "whole" not in scenario:
        for block in blocks:
            fully_shard(block, **options)
    if "head" in scenario:
        fully_shard(model.head, **options)
    if "inner" in scenario:
        fully_shard(model.body)
    if "joint" in scenario:
        fully_shard([model.body[-1], model.head])
    freed = True if "freed" in scenario else None
    return fully_shard(model, reshard_after_forward=freed, **options)


def whole(p):
    return (p.full_tensor() if isinstance(p, DTensor) else p).detach()
