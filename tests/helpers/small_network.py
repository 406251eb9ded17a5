"""A small network with two outputs, and plain ways to differentiate its losses."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TwoOutputs(nn.Module):
    """Class token, batch norm, dropout; the auxiliary head leaves after the first block."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.token = nn.Parameter(torch.randn(8))
        self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.drop = nn.Dropout(dropout)
        self.late = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.side = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.drop((self.stem(x) + self.token).relu())
        return self.head(self.late(features)), self.side(features)


def make_network(seed=0, dtype=torch.float64, **options) -> TwoOutputs:
    torch.manual_seed(seed)
    return TwoOutputs(**options).to(dtype)


def make_batch(size=16, seed=0, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (size,), generator=generator)


def two_losses(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the main output, and 0.3 times that of the auxiliary one, class by class."""
    logits, side = model(x)

    # In float32 at least: a loss in half precision would round what is to be compared.
    dtype = torch.promote_types(side.dtype, torch.float32)
    one_hot = F.one_hot(y, 3).to(dtype)
    auxiliary = F.binary_cross_entropy_with_logits(side.to(dtype), one_hot)
    return F.cross_entropy(logits.to(auxiliary), y), 0.3 * auxiliary


def gradients_of(loss: Tensor, model: nn.Module) -> dict[str, Tensor | None]:
    """By autograd alone, on the graph of this loss alone."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return dict(zip(names, gradients, strict=True))
