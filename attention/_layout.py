"""How the tokens of a layer lie: which come before the patches, and on which grid the rest."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor, nn

from resonance_toolkit import CLASS_TOKEN_NAMES

# How timm and transformers call the parameters of distillation and register tokens.
_OTHER_TOKEN_NAMES = frozenset(
    {"dist_token", "distillation_token", "reg_token", "register_tokens", "reg_tokens"}
)

# At the end of a parameter's name: `cls_token_0`, `cls_token_1`.
_NUMBER_OF_BRANCH = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Layout:
    """Where the queries and keys of one layer lie.

    `prefix`: how many class, distillation and register tokens come first. A grid is
    `(height, width)` in tokens; `(1, n)` is a sequence; None is unknown.
    """

    prefix: int
    queries: tuple[int, int] | None
    keys: tuple[int, int] | None

    def distances(self, rows: Sequence[int], n_keys: int, device: torch.device) -> Tensor | None:
        """Distance `(row, key)` in steps of the queries' grid; NaN, or None, at prefix tokens."""
        if self.queries is None or self.keys is None or max(rows) < self.prefix:
            return None

        height, width = self.queries
        key_height, key_width = self.keys
        query = torch.tensor(rows, device=device) - self.prefix
        key = torch.arange(n_keys, device=device) - self.prefix

        # Keys on a coarser grid stand at the centres of their cells.
        key_row = ((key // key_width) + 0.5) * (height / key_height) - 0.5
        key_column = ((key % key_width) + 0.5) * (width / key_width) - 0.5
        steps = torch.hypot(
            (query // width)[:, None] - key_row[None], (query % width)[:, None] - key_column[None]
        )

        is_on_grid = (query >= 0)[:, None] & (key >= 0)[None]
        return torch.where(is_on_grid, steps, torch.nan)


def find_layout(
    n_queries: int, n_keys: int, *, prefix: int, image_sizes: Collection[tuple[int, int]] | None
) -> Layout:
    """Place the tokens of a layer, from the sizes of the feature maps seen before it.

    Args:
        n_queries: In one window, or in the whole image.
        n_keys: Likewise.
        prefix: How many tokens the model puts before the patches, where it does.
        image_sizes: Sizes of feature maps; None if the model reads sequences.
    """
    if image_sizes is None:
        # Two sequences of different lengths have no distances between them.
        line = (1, n_keys - prefix) if n_queries == n_keys else None
        return Layout(prefix, line, line)

    # A layer may run before the class token joins, as in CaiT.
    if prefix and _grid(n_keys - prefix, image_sizes) is None and _grid(n_keys, image_sizes):
        prefix = 0

    keys = _grid(n_keys - prefix, image_sizes)
    queries = keys if n_queries == n_keys else _grid(n_queries - prefix, image_sizes)
    return Layout(prefix, queries, keys)


def find_prefix(model: nn.Module) -> tuple[int, bool]:
    """Count the tokens before the patches, and tell whether a class token is the first."""
    # The models of timm say so themselves.
    for module in model.modules():
        count = getattr(module, "num_prefix_tokens", None)
        if isinstance(count, int):
            return count, count > getattr(module, "num_reg_tokens", 0)

    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        # Of several branches with a class token each, as in CrossViT, each has one.
        last_part = _NUMBER_OF_BRANCH.sub("", name.rpartition(".")[2])
        if last_part in CLASS_TOKEN_NAMES | _OTHER_TOKEN_NAMES:
            counts[last_part] = parameter.shape[-2] if parameter.dim() > 1 else 1

    return sum(counts.values()), not CLASS_TOKEN_NAMES.isdisjoint(counts)


def _grid(n_tokens: int, image_sizes: Collection[tuple[int, int]]) -> tuple[int, int] | None:
    """Find the feature map of so many tokens, the latest if there are several; else a square."""
    fitting_sizes = [size for size in image_sizes if size[0] * size[1] == n_tokens]
    if fitting_sizes:
        return fitting_sizes[-1]

    side = isqrt(max(n_tokens, 0))
    return (side, side) if n_tokens > 0 and side * side == n_tokens else None
