"""Small models and data for `examine`."""

import torch
from torch import Tensor, nn


class Mixed(nn.Module):
    """Attention, batch norm, dropout and a frozen bias, with a block that a probe can attach to."""

    def __init__(self, width: int = 8, n_classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, n_classes)
        self.stem.bias.requires_grad_(False)
        self.calls = 0
        self.fail_at = None
        self.failure = RuntimeError

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise self.failure("forward failed")
        tokens = self.stem(x)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        for block in self.blocks:
            tokens = tokens + block(tokens).relu()
        return self.head(self.drop(self.norm(tokens.mean(1))))


def make_mixed(**settings) -> Mixed:
    torch.manual_seed(0)
    return Mixed(**settings)


def make_sequences(n_samples: int = 60) -> tuple[Tensor, Tensor]:
    """Three tokens of four numbers each; the class is the largest of three sums."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_samples, 3, 4, generator=generator)
    return x, x.sum(1)[:, :3].argmax(1)


def make_mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def make_vectors(n_samples: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_samples, 4, generator=generator)
    return x, x[:, :3].argmax(1)
