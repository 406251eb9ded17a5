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


class ConvNet(nn.Module):
    """Two blocks with batch norm and dropout, and a first layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(*(self.make_block() for _ in range(2)))
        self.head = nn.Linear(4, 3)
        self.stem.requires_grad_(False)

    @staticmethod
    def make_block() -> nn.Sequential:
        layers = [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def make_conv_net() -> ConvNet:
    torch.manual_seed(0)
    return ConvNet()


def make_images(n_samples: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(n_samples) % 3
    x = torch.randn(n_samples, 1, 6, 6, generator=generator) + y[:, None, None, None]
    return x, y


class Tagger(nn.Module):
    """A class for each token, called with keywords; padding is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = self.embedding(input_ids)
        for block in self.blocks:
            tokens = block(tokens, src_key_padding_mask=attention_mask == 0)
        return self.head(tokens)


def make_tagger() -> Tagger:
    torch.manual_seed(0)
    return Tagger()


def make_texts(n_samples: int = 60) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 11, (n_samples, 5), generator=generator)
    mask = torch.ones_like(ids)
    mask[::3, 3:] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": (ids % 3).masked_fill(mask == 0, -100),
    }
