import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resonance_toolkit import preserving_rng


class Trunk(nn.Module):
    """An MLP of `[norm(h), time embedding, signal]`, for every position of a hidden state.

    Where a state has several positions, the norm of their mean is a further input.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        outputs: int,
        *,
        hidden: int,
        layers: int,
        times: int,
        pooled: bool,
        seed: int,
    ) -> None:
        super().__init__()
        self.features, self.times, self.pooled = width * (1 + pooled), times, pooled
        widths = [self.features + times + classes, *[hidden] * (layers - 1), outputs]
        with preserving_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(widths[0], widths[1])
            self.others = nn.ModuleList(map(nn.Linear, widths[1:-1], widths[2:]))

    def forward(self, rows: Tensor, time: Tensor, signal: Tensor) -> Tensor:
        """Rows `(..., sample, position, feature)`, time `(sample,)`, signal `(sample, class)`."""
        normed = F.layer_norm(rows, rows.shape[-1:])
        if self.pooled:
            mean = rows.mean(-2, keepdim=True)
            mean = F.layer_norm(mean, mean.shape[-1:]).expand_as(rows)
            normed = torch.cat([normed, mean], dim=-1)
        # One matrix for [norm, time, signal]; what does not depend on the rows is computed once.
        known = torch.cat([_waves(time, self.times), signal], dim=1)
        known = F.linear(known, self.first.weight[:, self.features :], self.first.bias)
        x = normed @ self.first.weight[:, : self.features].T + known[:, None]
        for linear in self.others:
            x = linear(F.gelu(x))
        return x


def _waves(time: Tensor, numbers: int) -> Tensor:
    # Wave lengths from about 6 times the depth of the network down to a tenth of it.
    phase = time[:, None] * torch.logspace(0, 1.8, numbers // 2).to(time)
    return torch.cat([phase.sin(), phase.cos()], dim=1)
