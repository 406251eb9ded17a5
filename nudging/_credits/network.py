"""The network inside a bridge: one for all depths and all positions of a hidden state."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nudging._credits.positions import mean_of_rows
from resonance_toolkit import preserving_rng, seed_generators


@dataclass(frozen=True)
class NetworkSettings:
    """How large a `BridgeNetwork` is, and where it starts.

    Attributes:
        width: Features of a hidden state.
        classes: Numbers in the output error.
        pooled: Whether hidden states have several positions, whose mean the network sees, too.
        hidden: Width of its hidden layers.
        layers: Its linear layers.
        times: Numbers in the embedding of the depth; even.
        seed: Determines its initial weights.
    """

    width: int
    classes: int
    pooled: bool
    hidden: int
    layers: int
    times: int
    seed: int


class BridgeNetwork(nn.Module):
    """An MLP of `[norm(h), time embedding, signal]`, for every position of a hidden state.

    Where a state has several positions, the norm of their mean is a further input.
    """

    def __init__(self, settings: NetworkSettings, *, outputs: int) -> None:
        super().__init__()
        self.features = settings.width * (1 + settings.pooled)
        self.pooled = settings.pooled

        # Of the embedding of the depth. Wave lengths 2 pi / frequency: from about 6 times the depth
        # of the network (frequency 1) down to a tenth of it (frequency 10^1.8, about 63).
        frequencies = torch.logspace(0, 1.8, settings.times // 2, device="cpu")
        self.frequencies: Tensor
        self.register_buffer("frequencies", frequencies, persistent=False)

        inputs = self.features + settings.times + settings.classes
        widths = [inputs, *[settings.hidden] * (settings.layers - 1), outputs]

        # On the CPU, so that every device starts with the same weights.
        with preserving_rng(), torch.device("cpu"):
            seed_generators(settings.seed)
            self.first = nn.Linear(widths[0], widths[1])
            self.others = nn.ModuleList(map(nn.Linear, widths[1:-1], widths[2:]))

    def forward(
        self, rows: Tensor, time: Tensor, signal: Tensor, counts: Tensor | None = None
    ) -> Tensor:
        """Rows `(..., sample, position, feature)`, time `(sample,)`, signal `(sample, class)`.

        `counts` is False at padding, `(sample, position)`; None if all positions count.
        """
        features = F.layer_norm(rows, rows.shape[-1:])
        if self.pooled:
            mean = mean_of_rows(rows, counts)
            normed_mean = F.layer_norm(mean, mean.shape[-1:]).expand_as(rows)
            features = torch.cat([features, normed_mean], dim=-1)

        # The first layer is one matrix for [norm, time, signal]. What time and signal contribute is
        # the same at every position and for every noise draw, so it is computed once.
        context = torch.cat([self._embed_time(time), signal], dim=1)
        context = F.linear(context, self.first.weight[:, self.features :], self.first.bias)
        x = features @ self.first.weight[:, : self.features].T + context[:, None]

        for linear in self.others:
            x = linear(F.gelu(x))
        return x

    def _embed_time(self, time: Tensor) -> Tensor:
        phase = time[:, None] * self.frequencies.to(time)
        return torch.cat([phase.sin(), phase.cos()], dim=1)
