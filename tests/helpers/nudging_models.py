"""Networks with named blocks, and a plain way to change one of them."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block whose output includes the skip."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.second(nn.functional.gelu(self.first(self.norm(h))))


class ResMLP(nn.Module):
    """Embedding, residual blocks, terminal norm and head."""

    def __init__(self, width=16, depth=4, features=12, classes=5):
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Branches(nn.Module):
    """Two blocks side by side, and one that calls into the other's list."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(12, 8)
        self.right = nn.Linear(12, 8)
        self.deep = nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8)})
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        right = self.right(x)

        # In place, so that a recorded output is written into.
        left += self.deep["one"](right).relu_()
        return self.head(left * self.deep["two"](right).sigmoid())


class Whispering(nn.Module):
    """Not a sequence of outputs: the first block also leaves a note that the last one reads."""

    def __init__(self):
        super().__init__()
        self.first = Noting(12, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x)).relu()

        # Through an attribute, which no replay of module outputs can see.
        self.first.note = self.first.note + h
        return self.third(h + self.first.note)


class Noting(nn.Linear):
    """Keeps its latest output."""

    note = None

    def forward(self, x: Tensor) -> Tensor:
        self.note = super().forward(x)
        return self.note


def make(build, seed=0, dtype=torch.float32):
    """Build a model with the weights that belong to a seed."""
    torch.manual_seed(seed)
    return build().to(dtype)


def batch(n=10, shape=(12,), classes=5, dtype=torch.float32):
    """Draw inputs and classes, the same each time."""
    generator = torch.Generator().manual_seed(7)

    # In double precision first, so that every dtype gets the same numbers.
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, classes, (n,), generator=generator)


def in_place_of(output, tensor):
    """A tensor as the output of a block; GPT-2's was the first of a tuple once."""
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor


@torch.no_grad()
def by_hook(model, inputs, block, value):
    """A full forward pass in which a hook replaces the output of one block."""
    was_training = model.training
    model.eval()

    def replace_output(_module, _args, output):
        return in_place_of(output, value.clone())

    with model.get_submodule(block).register_forward_hook(replace_output):
        outputs = model(inputs)

    model.train(was_training)
    return outputs
