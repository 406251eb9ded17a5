"""The networks and data that the benchmarks measure on.

They have the sizes of the papers' small backbones, but are built here, so that a benchmark needs
nothing but the installed packages and this folder.
"""

from itertools import pairwise

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

Data = tuple[Tensor, Tensor]


def random_images(n_samples: int, size: int = 32, *, classes: int = 10) -> Data:
    """Gaussian images `(sample, 3, size, size)` with random labels."""
    images = torch.randn(n_samples, 3, size, size)
    labels = torch.randint(0, classes, (n_samples,))
    return images, labels


def digits() -> Data:
    """Four fifths of scikit-learn's bundled 8 x 8 digits, shuffled and standardised."""
    pixels, labels = load_digits(return_X_y=True)
    pixels, _, labels, _ = train_test_split(
        pixels, labels, test_size=0.2, stratify=labels, random_state=0
    )

    images = pixels.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    images = (images - images.mean()) / images.std()
    return torch.from_numpy(images), torch.from_numpy(labels).long()


def vit6(
    classes: int = 100, *, image: int = 32, patch: int = 4, channels: int = 3
) -> VisionTransformer:
    """ViT-6L: six blocks of width 128 with four heads and a class token."""
    return VisionTransformer(
        img_size=image,
        patch_size=patch,
        in_chans=channels,
        num_classes=classes,
        embed_dim=128,
        depth=6,
        num_heads=4,
        mlp_ratio=4,
    )


def cnn(classes: int = 100, *, channels: int = 3) -> nn.Sequential:
    """Six 3 x 3 convolutions, pooled after the second and the fourth; three linear layers."""
    stages: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise([channels, 32, 64, 96, 192, 192, 256])):
        stage = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        if index in (1, 3):
            stage.append(nn.MaxPool2d(2))
        stages.append(nn.Sequential(*stage))

    # The paper has dropout here; without it all ways of computing something must agree.
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )

    model = nn.Sequential()
    model.add_module("features", nn.Sequential(*stages))
    model.add_module("head", head)
    return model


def paper_mlp(classes: int = 10, *, inputs: int = 3072) -> nn.Sequential:
    """Widths 64, 128, 256, 128, 64: more work behind the first layer than `narrow_mlp` has."""
    return _mlp([inputs, 64, 128, 256, 128, 64, classes])


def narrow_mlp() -> nn.Sequential:
    """3072-6x64-10, most of whose work is its first layer."""
    return _mlp([3072, *[64] * 6, 10])


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]

    # No ReLU behind the logits.
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    """`h + W2 gelu(W1 norm(h))` with square matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """The sum of the input and the branch."""
        return hidden + self.second(F.gelu(self.first(self.norm(hidden))))


def residual_mlp(*, width: int = 256, depth: int = 8) -> nn.Sequential:
    """An embedding of 32 x 32 images, residual blocks, a head; the blocks are `"2"`, `"3"`, ..."""
    blocks = [ResidualBlock(width) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, width), *blocks, nn.Linear(width, 10))


def train(model: nn.Module, images: Tensor, labels: Tensor, *, steps: int = 150) -> None:
    """A few steps of Adam, with the same batches every time."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    model.train()

    for _ in range(steps):
        rows = torch.randint(0, len(images), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
