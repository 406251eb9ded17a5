from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

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
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "nheads")
# Largest error against what the layer itself used that rounding explains.
_TOLERANCE = {torch.float64: 1e-6, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Call:
    """One attention call of one layer, from which any rows of its map can be computed.

    `shape` is `(group, head, query, key)`: a group is a sample, or one window of it.
    `logits(rows)` has axes `(group, head, row, key)`. `mismatch(weights, rows)()` says how far
    weights of the first group are from what the layer itself used, and may wait; None if they
    cannot be compared (the kernel dropped some out). `samples`: how many, where the call knows.
    """

    module: nn.Module
    kind: str
    shape: tuple[int, int, int, int]
    logits: Callable[[Rows], Tensor]
    mismatch: Callable[[Tensor, Rows], Callable[[], Tensor]] | None
    tolerance: float
    device: torch.device
    samples: int | None

    def with_values(self, others: Sequence[Tensor]) -> "Call":
        """Look at what a map was multiplied with: tokens, or channels as in XCiT."""
        n_keys = self.shape[3]
        widths = {size for other in others for size in other.shape[-2:]} - {n_keys}
        across = self.kind == "softmax" and _is_channel(self.module, self.shape, widths)
        return replace(self, kind="channel") if across else self


def of_softmax(
    place: Place,
    scores: Tensor,
    weights: Tensor,
    *,
    heads: int | None = None,
    samples: int | None = None,
) -> Call:
    """Describe `weights = softmax(scores)` with axes `(..., query, key)`."""
    fold, groups = _folding(scores.shape[:-2], heads or _heads_of(place.module))
    # A copy of one row: the map itself must be free to go when the model is done with it.
    used = fold(weights[..., :1, :].detach())[:1].clone()

    def logits(rows: Rows) -> Tensor:
        return _as(fold(scores[..., rows, :]), _working(scores.dtype))

    def mismatch(*_: object) -> Callable[[], Tensor]:
        error = (logits(slice(0, 1))[:1].softmax(-1) - used).abs().max()
        return lambda: error

    return Call(
        module=place.module,
        kind="softmax",
        shape=(*groups, scores.size(-2), scores.size(-1)),
        logits=logits,
        mismatch=mismatch,
        tolerance=_tolerance(weights),
        device=scores.device,
        samples=samples,
    )


def of_kernel(
    place: Place,
    output: Tensor,
    arguments: dict[str, Any],
    *,
    heads: int | None = None,
    samples: int | None = None,
) -> Call:
    """Describe a call of `scaled_dot_product_attention`."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    mask, scale = arguments["attn_mask"], arguments["scale"]
    if query.is_nested:
        raise ValueError(f"layer {place.layer!r} attends over nested tensors: pass padded ones")
    if hasattr(mask, "_materialize"):  # a causal bias of torch.nn.attention.bias
        mask = mask._materialize(query.device)
    if arguments["enable_gqa"]:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    batch = query.shape[:-2]
    if key.shape[:-2] != batch:
        batch = torch.broadcast_shapes(batch, key.shape[:-2])
    dtype = _working(query.dtype)
    fold, groups = _folding(batch, heads or _heads_of(place.module))

    def whole(tensor: Tensor) -> Tensor:
        fits = tensor.shape[:-2] == batch
        return fold(tensor if fits else tensor.expand(*batch, *tensor.shape[-2:]))

    def logits(rows: Rows) -> Tensor:
        scores = _scores(_as(query[..., rows, :], dtype) * scale, _as(key, dtype))
        if mask is not None:
            part = mask if mask.dim() < 2 or mask.size(-2) == 1 else mask[..., rows, :]
            is_bool = part.dtype == torch.bool
            scores = scores.masked_fill(~part, -torch.inf) if is_bool else scores + part
        if arguments["is_causal"]:  # aligned at the top left, as torch does
            places = torch.arange(max(query.size(-2), key.size(-2)), device=query.device)
            later = places[: key.size(-2)] > places[: query.size(-2)][rows, None]
            scores = scores.masked_fill(later, -torch.inf)
        return whole(scores)

    def mismatch(weights: Tensor, rows: Rows) -> Callable[[], Tensor]:
        mine = weights @ _as(whole(value)[:1], dtype)
        theirs = fold(output[..., rows, :])[:1].to(dtype, copy=True)  # the model may write to it
        return lambda: (mine - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)

    shape = (*groups, query.size(-2), key.size(-2))
    return Call(
        module=place.module,
        kind="channel" if _is_channel(place.module, shape, {value.size(-1)}) else "sdpa",
        shape=shape,
        logits=logits,
        mismatch=None if arguments["dropout_p"] else mismatch,
        tolerance=_tolerance(output),
        device=query.device,
        samples=samples if batch else 1,
    )


def _scores(query: Tensor, key: Tensor) -> Tensor:
    if query.size(-2) > 1:
        return query @ key.mT
    # One row: this reads the keys where they lie; a product of matrices would copy them first.
    return (query * key).sum(-1)[..., None, :]


def _heads_of(module: nn.Module) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and count > 0:
                return count
    return None


def _is_channel(module: nn.Module, shape: tuple[int, ...], widths: set[int]) -> bool:
    """Whether the keys are a head's channels: heads times keys make up the layer's width."""

    def some_child_takes(sizes: set[int]) -> bool:
        takes = (getattr(child, "in_features", None) for child in module.children())
        return any(size in {shape[1] * width for width in sizes} for size in takes)

    return not some_child_takes(widths or {shape[3]}) and some_child_takes({shape[3]})


def _folding(
    batch: torch.Size, heads: int | None
) -> tuple[Callable[[Tensor], Tensor], tuple[int, int]]:
    """How to bring axes `(*batch, a, b)` into the form `(group, head, a, b)`; how many of both."""
    if not batch:
        return lambda tensor: tensor[None, None], (1, 1)
    if len(batch) == 1:
        n_heads = heads if heads and batch[0] % heads == 0 else 1
        return lambda tensor: tensor.unflatten(0, (-1, n_heads)), (batch[0] // n_heads, n_heads)
    if len(batch) == 2:
        return lambda tensor: tensor, (batch[0], batch[1])
    if heads and batch[-1] != heads and batch[1] == heads:
        windows = batch.numel() // heads  # they come after the heads
        return lambda tensor: tensor.movedim(1, -3).flatten(0, -4), (windows, heads)
    return lambda tensor: tensor.flatten(0, -4), (batch[:-1].numel(), batch[-1])


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _tolerance(output: Tensor) -> float:
    dtype = output.dtype
    if torch.is_autocast_enabled(output.device.type):
        dtype = torch.get_autocast_dtype(output.device.type)
    return _TOLERANCE.get(dtype, 1e-3)
