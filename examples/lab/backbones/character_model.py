"""The causal character transformer of the asymmetric-exit study, sized as its counts imply.

Rotary positions, SwiGLU, RMSNorm after each sum, no bias anywhere, and one head for every exit.
It offers what `probes.generate` asks of a model: `embed`, `layers` with `project` and `attend`, and
`head`.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_POSITIONS = 4096  # of the rotary table; the study trains on 64


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
        positions = torch.arange(ids.shape[-1], device=ids.device)
        hidden = self.embed(ids, positions)
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

        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

        self.norm_attention = nn.RMSNorm(width)
        self.norm_feed = nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """All positions at once."""
        positions = torch.arange(x.shape[-2], device=x.device)
        keys, values = self.project(x, positions)
        return self.attend(x, positions, keys, values)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `(sample, head, position, feature)`: all that later positions need."""
        keys = rotate(self._split_heads(self.key(x)), positions)
        values = self._split_heads(self.value(x))
        return keys, values

    def attend(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The layer's output at the last positions, given keys and values from the first on."""
        queries = rotate(self._split_heads(self.query(x)), positions)
        n_queries, n_keys = queries.shape[-2], keys.shape[-2]

        # One query, the last position, sees every key: no mask. As many queries as keys: causal, as
        # torch has it. In between, query i sees the keys up to its own position, n_keys - n_queries
        # further to the right than torch's causal mask would let it.
        mask = None
        if 1 < n_queries < n_keys:
            ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=x.device)
            mask = ones.tril(n_keys - n_queries)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=1 < n_queries == n_keys
        )

        x = self.norm_attention(x + self.out(mixed.transpose(-3, -2).flatten(-2)))
        return self.norm_feed(x + self.down(F.silu(self.gate(x)) * self.up(x)))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn feature pairs `(i, i + half)` by `position * 10,000 ** (-i / half)`."""
    half = x.shape[-1] // 2
    cos_table, sin_table = _rotary_tables(half, x.dtype, x.device)
    cos, sin = cos_table[positions], sin_table[positions]

    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


@cache
def _rotary_tables(half: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    # In double precision: at position 4000 a single-precision angle is off by 2e-4.
    exponents = torch.arange(half, dtype=torch.float64) / half
    positions = torch.arange(MAX_POSITIONS, dtype=torch.float64)
    angles = positions[:, None] * 10_000.0**-exponents
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
