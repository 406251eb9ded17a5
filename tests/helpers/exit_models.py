"""Small models with early exits: a text model of one's own, GPT-2 and a ViT from libraries."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 11
BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]


class Block(nn.Module):
    """A position-wise layer with a residual connection and its norm after it."""

    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        running_mean = x.cumsum(1) / counts
        return self.norm(x + self.mix(running_mean).tanh())


class TextModel(nn.Module):
    """Causal, post-norm, one bias-free head on the raw output of the last block."""

    def __init__(self, depth=3, width=6, classes=VOCABULARY, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def text_model(seed=0, dtype=torch.float64, **options) -> TextModel:
    torch.manual_seed(seed)
    return TextModel(**options).to(dtype)


def text(samples=7, tokens=9, seed=0, classes=VOCABULARY) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, classes, (samples, tokens + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def gpt2(seed=0, layers=3) -> nn.Module:
    # Here, since ranks start faster without.
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=layers,
        n_embd=16,
        n_head=2,
        vocab_size=VOCABULARY,
        n_positions=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def vit(seed=0, **options) -> nn.Module:
    import timm

    torch.manual_seed(seed)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2}
    return timm.models.VisionTransformer(**(sizes | options), num_classes=5)


def images(samples=6, seed=0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (samples,), generator=generator)
    x = torch.randn(samples, 3, 16, 16, generator=generator)
    return x, y


def by_hand(model, ids, y, weights, head=None):
    """The objective without hooks: the model's forward written out once more."""
    head = head or model.head
    x = model.drop(model.embed(ids))
    total = 0.0

    for block, weight in zip(model.blocks, weights, strict=True):
        x = block(x)
        logits = head(x)
        total = total + weight * F.cross_entropy(logits.flatten(0, 1), y.flatten())

    return total


def sharpened(**options) -> TextModel:
    """A text model whose confidences spread over the unit interval."""
    model = text_model(**options)
    with torch.no_grad():
        model.head.weight.mul_(3)
    return model
