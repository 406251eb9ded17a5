"""A small model with all that a monitor could disturb, and a training of it by hand."""

import torch
import torch.nn.functional as F
from torch import nn

import probes


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.2)
        self.drop = nn.Dropout(0.3)
        self.mlp = nn.Linear(8, 8)

    def forward(self, tokens):
        tokens = tokens + self.attn(tokens, tokens, tokens, need_weights=False)[0]
        return tokens + self.drop(self.mlp(tokens).relu())


class Hybrid(nn.Module):
    """Convolution, batch norm, attention and dropout."""

    def __init__(self, n_blocks=2):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 2, 2)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(*(Block() for _ in range(n_blocks)))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.norm(self.stem(x)).flatten(2).mT
        return self.head(self.blocks(tokens).mean(1))


def make_model():
    torch.manual_seed(0)
    return Hybrid()


def make_batch(seed=0, n=6):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 6, 6, generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


class Run:
    """A model, its branches and its optimizer, from the same seed each time."""

    def __init__(self, **settings):
        self.model = make_model()
        self.probe = probes.attach(self.model, "blocks.*", n=3, **settings)
        parameters = [*self.model.parameters(), *self.probe.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-2)

    def losses(self, seed):
        x, y = make_batch(seed)
        return F.cross_entropy(self.model(x), y), self.probe.loss(y)

    def train(self, steps, backward=None, *, first=0):
        """Some updates; dropout draws from the global generator, seeded at each."""
        for step in range(first, first + steps):
            torch.manual_seed(100 + step)
            losses = self.losses(step)
            (backward or add_and_backward)(*losses)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self):
        """Everything that training moves."""
        return {**self.model.state_dict(), **self.probe.state_dict()}


def add_and_backward(main, auxiliary):
    (main + auxiliary).backward()


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if torch.is_tensor(value):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name
