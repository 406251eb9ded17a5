"""One attention call of one layer, in the two forms in which torch computes it.

`call_from_kernel` describes a call of `scaled_dot_product_attention`, `call_from_softmax` a
softmax over scores. Neither computes anything yet: `Call.logits` gives the rows that are asked
for, and `Call.compare` holds one of them against what the layer itself used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attention._heads import attends_to_channels, count_heads, group_and_head_axes
from attention._locate import Place

Rows = slice | Tensor

KERNEL_ARGUMENTS = {
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}

# Largest error against what the layer itself used that rounding explains: ten or twenty units in
# the last place of the half precisions, and far more of the wider types, whose kernels add up in
# another order.
_TOLERANCES = {torch.float64: 1e-6, torch.float16: 2e-2, torch.bfloat16: 8e-2}
_FLOAT32_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Comparison:
    """What was read of a layer, beside what it used itself.

    Evaluated when the forward pass is over: to read a number makes an accelerator wait.
    """

    ours: Tensor
    theirs: Tensor
    is_relative: bool  # to the largest number of theirs
    tolerance: float

    def error(self) -> float:
        """Return the largest difference, as a multiple of what rounding explains."""
        difference = (self.ours - self.theirs).abs().max()
        if self.is_relative:
            difference = difference / self.theirs.abs().max().clamp_min(1e-6)
        return difference.item() / self.tolerance


@dataclass(frozen=True)
class Call:
    """One attention call of one layer, from which any rows of its map can be computed."""

    module: nn.Module
    kind: str
    shape: tuple[int, int, int, int]  # (group, head, query, key): a group is a sample or a window
    logits: Callable[[Rows], Tensor]  # rows of the map before the softmax: (group, head, row, key)
    # The weights of some rows of the first group, against the layer's own; None if they cannot be
    # compared, since the kernel dropped some out.
    compare: Callable[[Tensor, Rows], Comparison] | None
    device: torch.device
    n_samples: int | None  # where the call knows

    def with_values(self, tensors: Sequence[Tensor]) -> "Call":
        """Look at what a map was multiplied with: tokens, or channels as in XCiT."""
        _, n_heads, _, n_keys = self.shape
        widths = {size for tensor in tensors for size in tensor.shape[-2:]} - {n_keys}
        if self.kind == "softmax" and attends_to_channels(self.module, n_heads, n_keys, widths):
            return replace(self, kind="channel")
        return self


def call_from_softmax(
    place: Place,
    scores: Tensor,
    weights: Tensor,
    *,
    n_heads: int | None = None,
    n_samples: int | None = None,
) -> Call:
    """Describe `weights = softmax(scores)` with axes `(..., query, key)`."""
    to_groups, counts = group_and_head_axes(scores.shape[:-2], n_heads or count_heads(place.module))
    tolerance = _tolerance(weights)

    # A copy of one row: the map itself must be free to go when the model is done with it.
    used_row = to_groups(weights[..., :1, :].detach())[:1].clone()

    def logits(rows: Rows) -> Tensor:
        return _cast(to_groups(scores[..., rows, :]), _compute_dtype(scores.dtype))

    def compare(*_: object) -> Comparison:
        row = logits(slice(0, 1))[:1].softmax(-1)
        return Comparison(row, used_row, is_relative=False, tolerance=tolerance)

    return Call(
        module=place.module,
        kind="softmax",
        shape=(*counts, scores.size(-2), scores.size(-1)),
        logits=logits,
        compare=compare,
        device=scores.device,
        n_samples=n_samples,
    )


def call_from_kernel(
    place: Place,
    output: Tensor,
    arguments: dict[str, Any],
    *,
    n_heads: int | None = None,
    n_samples: int | None = None,
) -> Call:
    """Describe a call of `scaled_dot_product_attention`."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.is_nested:
        raise ValueError(f"layer {place.layer!r} attends over nested tensors: pass padded ones")

    # Grouped queries: each head of the keys serves several of the queries.
    if arguments["enable_gqa"]:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)

    mask = arguments["attn_mask"]
    if hasattr(mask, "_materialize"):  # a causal bias of torch.nn.attention.bias
        mask = mask._materialize(query.device)

    batch = query.shape[:-2]
    if key.shape[:-2] != batch:
        batch = torch.broadcast_shapes(batch, key.shape[:-2])
    to_groups, counts = group_and_head_axes(batch, n_heads or count_heads(place.module))

    scale = query.size(-1) ** -0.5 if arguments["scale"] is None else arguments["scale"]
    dtype = _compute_dtype(query.dtype)
    tolerance = _tolerance(output)

    def expand_to_groups(tensor: Tensor) -> Tensor:
        fits = tensor.shape[:-2] == batch
        return to_groups(tensor if fits else tensor.expand(*batch, *tensor.shape[-2:]))

    def logits(rows: Rows) -> Tensor:
        scores = _multiply(_cast(query[..., rows, :], dtype) * scale, _cast(key, dtype))
        if mask is not None:
            scores = _apply_mask(scores, mask, rows)
        if arguments["is_causal"]:
            scores = _hide_later_keys(scores, rows, query.size(-2))
        return expand_to_groups(scores)

    def compare(weights: Tensor, rows: Rows) -> Comparison:
        ours = weights @ _cast(expand_to_groups(value)[:1], dtype)
        # A copy: the model may write to its output.
        theirs = to_groups(output[..., rows, :])[:1].to(dtype, copy=True)
        return Comparison(ours, theirs, is_relative=True, tolerance=tolerance)

    shape = (*counts, query.size(-2), key.size(-2))
    over_channels = attends_to_channels(place.module, shape[1], shape[3], {value.size(-1)})
    return Call(
        module=place.module,
        kind="channel" if over_channels else "sdpa",
        shape=shape,
        logits=logits,
        compare=None if arguments["dropout_p"] else compare,
        device=query.device,
        n_samples=n_samples if batch else 1,
    )


def _multiply(query: Tensor, key: Tensor) -> Tensor:
    if query.size(-2) > 1:
        return query @ key.mT
    # One row: this reads the keys where they lie; a product of matrices would copy them first.
    return (query * key).sum(-1)[..., None, :]


def _apply_mask(scores: Tensor, mask: Tensor, rows: Rows) -> Tensor:
    # A mask without an axis of queries, or with one of length 1, is the same for all rows.
    part = mask if mask.dim() < 2 or mask.size(-2) == 1 else mask[..., rows, :]
    if part.dtype == torch.bool:
        return scores.masked_fill(~part, -torch.inf)
    return scores + part


def _hide_later_keys(scores: Tensor, rows: Rows, n_queries: int) -> Tensor:
    # Aligned at the top left, as torch does: query i sees the keys up to i.
    n_keys = scores.size(-1)
    positions = torch.arange(max(n_queries, n_keys), device=scores.device)
    is_later = positions[:n_keys] > positions[:n_queries][rows, None]
    return scores.masked_fill(is_later, -torch.inf)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _tolerance(output: Tensor) -> float:
    dtype = output.dtype
    if torch.is_autocast_enabled(output.device.type):
        dtype = torch.get_autocast_dtype(output.device.type)
    return _TOLERANCES.get(dtype, _FLOAT32_TOLERANCE)
