"""The first command's network and data: a small vision transformer, scikit-learn's digits."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resonance_toolkit import preserving_rng
from resonance_toolkit._front.command.mistake import Mistake

# As the quickstart example: four blocks of width 64 over 4 x 4 patches of 2 x 2 pixels.
_WIDTH = 64
_DEPTH = 4
_HEADS = 4
_PATCH = 2
_SIDE = 8
_CLASSES = 10

# Of the 1797 digits, so many train the network beforehand; the page is about the others, which it
# has not seen. It then recognises most of them, and has not finished learning.
_N_BEFOREHAND = 597
_EPOCHS = 8


class DigitsViT(nn.Module):
    """A vision transformer with a class token, for grey images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        n_patches = (_SIDE // _PATCH) ** 2
        self.patch_embed = nn.Conv2d(1, _WIDTH, kernel_size=_PATCH, stride=_PATCH)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, _WIDTH))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, n_patches + 1, _WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(_DEPTH)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `(sample, class)` of images `(sample, 1, 8, 8)`."""
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        class_tokens = self.cls_token.expand(len(x), -1, -1)
        tokens = torch.cat([class_tokens, patches], dim=1) + self.pos_embed
        tokens = self.norm(self.blocks(tokens))
        logits: Tensor = self.head(tokens[:, 0])
        return logits


class Block(nn.Module):
    """Attention and a perceptron, each with a norm before it and a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens `(sample, token, width)`."""
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.proj = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens `(sample, token, width)`."""
        n_samples, n_tokens, _ = x.shape
        qkv = self.qkv(x).view(n_samples, n_tokens, 3, _HEADS, _WIDTH // _HEADS)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        projected: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return projected


def load_digits() -> tuple[Tensor, Tensor]:
    """Load all 1797 digits `(sample, 1, 8, 8)`, standardised, and their labels.

    Raises:
        Mistake: If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load_arrays
    except ImportError as error:
        raise Mistake(
            "--data digits: they come with scikit-learn, which is not installed; run: "
            "pip install 'resonance-toolkit[examples]'"
        ) from error

    pixels, labels = load_arrays(return_X_y=True)
    images = torch.from_numpy(pixels.astype(np.float32)).view(-1, 1, _SIDE, _SIDE)
    images = (images - images.mean()) / images.std()
    return images, torch.from_numpy(labels.astype(np.int64))


def make_digits_vit(seed: int) -> tuple[DigitsViT, tuple[Tensor, Tensor]]:
    """Draw a network by `seed`, train it briefly on some digits, and give it with the others.

    A network as it is drawn attends evenly and stands on a plateau: there would be little to see.
    """
    images, labels = load_digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator, device="cpu")
    rows_beforehand = order[:_N_BEFOREHAND]
    other_rows = order[_N_BEFOREHAND:]

    with preserving_rng():
        torch.manual_seed(seed)
        model = DigitsViT()

    _train_model(model, images[rows_beforehand], labels[rows_beforehand], generator)
    return model.eval(), (images[other_rows], labels[other_rows])


def _train_model(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)

    for _ in range(_EPOCHS):
        order = torch.randperm(len(x), generator=generator, device="cpu")
        for rows in order.split(32):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.zero_grad()
