from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor, nn

_CLASS_TOKENS = {"cls_token", "class_token", "class_embedding", "cls_embedding", "cls_embed"}
_OTHER_TOKENS = {"dist_token", "distillation_token", "reg_token", "register_tokens", "reg_tokens"}


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
        (height, width), (key_height, key_width) = self.queries, self.keys
        row = torch.tensor(rows, device=device) - self.prefix
        key = torch.arange(n_keys, device=device) - self.prefix
        # Keys on a coarser grid stand at the centres of their cells.
        down = ((key // key_width) + 0.5) * (height / key_height) - 0.5
        along = ((key % key_width) + 0.5) * (width / key_width) - 0.5
        steps = torch.hypot(
            (row // width)[:, None] - down[None], (row % width)[:, None] - along[None]
        )
        placed = (row >= 0)[:, None] & (key >= 0)[None]
        return torch.where(placed, steps, torch.nan)


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
        same = n_queries == n_keys
        line = (1, n_keys - prefix) if same else None
        return Layout(prefix, line, line)
    if prefix and _grid(n_keys - prefix, image_sizes) is None and _grid(n_keys, image_sizes):
        prefix = 0  # this layer runs before the class token joins, as in CaiT
    keys = _grid(n_keys - prefix, image_sizes)
    queries = keys if n_queries == n_keys else _grid(n_queries - prefix, image_sizes)
    return Layout(prefix, queries, keys)


def find_prefix(model: nn.Module) -> tuple[int, bool]:
    """How many tokens a model puts before its patches, and whether a class token is the first."""
    for module in model.modules():
        count = getattr(module, "num_prefix_tokens", None)
        if isinstance(count, int):
            return count, count > getattr(module, "num_reg_tokens", 0)
    sizes = {
        name.rpartition(".")[2]: parameter.shape[-2] if parameter.dim() > 1 else 1
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] in _CLASS_TOKENS | _OTHER_TOKENS
    }
    return sum(sizes.values()), bool(sizes.keys() & _CLASS_TOKENS)


def _grid(count: int, image_sizes: Collection[tuple[int, int]]) -> tuple[int, int] | None:
    side = isqrt(max(count, 0))
    sizes = [size for size in image_sizes if size[0] * size[1] == count]
    if sizes:
        return sizes[-1]
    return (side, side) if count > 0 and side * side == count else None
