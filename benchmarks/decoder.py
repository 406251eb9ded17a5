"""A causal language model that can be decoded layer by layer.

It follows the early-exit study's character model: rotary positions, SwiGLU, RMSNorm after each sum,
no bias, and one head for every exit. Training calls the model; `probes.generate` calls its parts
(`embed`, then `project` and `attend` of each layer, then `head`), as `probes.Decodable` states.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LONGEST = 128  # positions; the benchmarks use 64


class Decoder(nn.Module):
    """Logits `(sample, position, vocabulary)` of the next token."""

    def __init__(self, vocabulary: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """All positions at once, for tokens `(sample, position)`."""
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)

        return self.head(hidden)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Input of the first layer; positions matter in the attention alone."""
        return self.embedding(ids)


class DecoderLayer(nn.Module):
    """Attention, then SwiGLU, each as `norm(x + sublayer(x))`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads

        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.attention_norm = nn.RMSNorm(width)

        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width)

        # Features i and i + half turn by the angle position * 10000 ** (-i / half) (RoFormer).
        half = width // heads // 2
        frequencies = 10_000.0 ** -(torch.arange(half) / half)
        angles = torch.arange(LONGEST)[:, None] * frequencies
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """All positions at once."""
        positions = torch.arange(x.shape[-2])
        return self.attend(x, positions, *self.project(x, positions))

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `(sample, head, position, feature)`."""
        keys = self._rotate(self._split_heads(self.key(x)), positions)
        values = self._split_heads(self.value(x))
        return keys, values

    def attend(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Output at the last positions, given keys and values from the first position on."""
        queries = self._rotate(self._split_heads(self.query(x)), positions)

        # Row i of the queries stands at position `n_keys - n_queries + i`. Torch's `is_causal`
        # assumes a square; a single query may see everything.
        n_queries, n_keys = queries.shape[-2], keys.shape[-2]
        mask = None
        if 1 < n_queries < n_keys:
            mask = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)

        mixed_values = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=1 < n_queries == n_keys
        )
        merged_heads = mixed_values.transpose(-3, -2).flatten(-2)

        x = self.attention_norm(x + self.output(merged_heads))
        return self.feed_norm(x + self.down(F.silu(self.gate(x)) * self.up(x)))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cosine = self.cosine[positions]
        sine = self.sine[positions]
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
