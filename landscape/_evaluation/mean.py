import math

import torch
from torch import Tensor


class Mean:
    """A mean over samples, from batches of per-sample values or of scalars."""

    def __init__(self) -> None:
        self.pieces: list[Tensor] = []
        self.sizes: list[int] = []
        self.defined = True

    def add(self, value: Tensor | None, size: int) -> None:
        """Take in the value of one batch; None makes the mean undefined."""
        if value is None:
            self.defined = False
            return
        if value.dim() > 1 and len(value) == size:
            value = value.reshape(size, -1).mean(1)
        if value.dim() and value.shape != (size,):
            raise ValueError(
                "a loss or metric returned shape "
                f"{tuple(value.shape)} for {size} samples: expected a scalar or one per sample"
            )
        self.pieces.append(value.detach())
        self.sizes.append(size)

    def mean(self) -> float:
        """Over all samples; NaN if there is nothing."""
        if not self.defined or not self.pieces:
            return math.nan
        if self.pieces[0].dim():
            return torch.cat(self.pieces).double().mean().item()
        total = sum(v.double() * n for v, n in zip(self.pieces, self.sizes, strict=True))
        return float(total) / sum(self.sizes)

    def standard_error(self) -> float:
        """Of the mean over samples; NaN if the loss gave one number per batch."""
        if not self.pieces[0].dim():
            return math.nan
        values = torch.cat(self.pieces).double()
        return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
