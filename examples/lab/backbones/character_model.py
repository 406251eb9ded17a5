"""The causal character transformer of the asymmetric-exit study, sized as its counts imply.

Rotary positions, SwiGLU, RMSNorm after each sum, no bias anywhere, and one head for every exit.
It offers what `probes.generate` asks of a model: `embed`, `layers` with `project` and `attend`, and
`head`.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LONGEST = 4096  # positions; the study trains on 64


class CharacterModel(nn.Module):
    """Logits of the next character, `(sample, position, vocabulary)`.

    Args:
        vocabulary: How many characters there are.
        width: Of the hidden state.
        depth: Layers.
        heads: Attention heads.

    Examples:
        >>> sum(p.numel() for p in CharacterModel(30).parameters())
        200832
    """

    def __init__(self, vocabulary: int, *, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"`width`: expected a multiple of 2 x {heads} heads, got {width}")
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits for characters `(sample, position)`."""
        hidden = self.embed(ids, torch.arange(ids.shape[-1], device=ids.device))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden state before the first layer; positions enter in the attention alone."""
        return self.embedding(ids)


class Layer(nn.Module):
    """Attention and SwiGLU, each followed by `norm(x + sublayer(x))`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.norm_attention, self.norm_feed = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """All positions at once."""
        positions = torch.arange(x.shape[-2], device=x.device)
        return self.attend(x, positions, *self.project(x, positions))

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `(sample, head, position, feature)`: all that later positions need."""
        return rotate(self._split(self.key(x)), positions), self._split(self.value(x))

    def attend(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The layer's output at the last positions, given keys and values from the first on."""
        queries = rotate(self._split(self.query(x)), positions)
        new, known = queries.shape[-2], keys.shape[-2]
        # A lone last position sees everything; a square is causal as usual; else a band.
        mask = None
        if 1 < new < known:
            mask = torch.ones(new, known, dtype=torch.bool, device=x.device).tril(known - new)
        seen = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=1 < new == known
        )
        x = self.norm_attention(x + self.out(seen.transpose(-3, -2).flatten(-2)))
        return self.norm_feed(x + self.down(F.silu(self.gate(x)) * self.up(x)))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn feature pairs `(i, i + half)` by `position * 10,000 ** (-i / half)`."""
    half = x.shape[-1] // 2
    cos, sin = (table[positions] for table in _turns(half, x.dtype, x.device))
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


@cache
def _turns(half: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    powers = torch.arange(half, dtype=torch.float64) / half
    angles = torch.arange(LONGEST, dtype=torch.float64)[:, None] * 10_000.0**-powers
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
