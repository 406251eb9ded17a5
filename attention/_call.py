from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Rows = slice | Tensor
# Largest relative error of `p @ v` against the kernel's output that rounding explains.
_TOLERANCE = {torch.float64: 1e-6, torch.float16: 2e-2, torch.bfloat16: 8e-2}
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "nheads")


@dataclass(frozen=True)
class Call:
    """One attention call of one layer, from which any rows of its map can be computed.

    `logits(rows)` has axes `(group, head, row, key)`: a group is a sample, or one window of it.
    `mismatch(weights, rows)` says how far softmax weights of the first group are from what the
    layer itself used; None if there is nothing to compare with (the kernel dropped some weights).
    """

    layer: str
    kind: str
    shape: tuple[int, int, int, int]
    logits: Callable[[Rows], Tensor]
    mismatch: Callable[[Tensor, Rows], Tensor] | None
    device: torch.device
    tolerance: float
    samples: int | None = None
    """How many samples there are, where the call itself knows."""


def of_softmax(
    layer: str, module: nn.Module, scores: Tensor, weights: Tensor, **known: Any
) -> Call:
    """Describe `weights = softmax(scores)` with axes `(..., query, key)`."""
    fold = _folding(scores.shape[:-2], known.pop("heads", None) or heads_of(module))
    shape = fold(scores[..., :1, :1]).shape[:2] + scores.shape[-2:]
    # A copy of one row: the map itself must be free to go when the model is done with it.
    used = fold(weights[..., :1, :])[:1].clone()

    def mismatch(_: Tensor, rows: Rows) -> Tensor:
        again = fold(scores[..., :1, :])[:1].to(_working(scores.dtype)).softmax(-1)
        return (again - used).abs().max()

    return Call(
        layer=layer,
        kind="softmax",
        shape=tuple(shape),
        logits=lambda rows: fold(scores[..., rows, :]),
        mismatch=mismatch,
        device=scores.device,
        tolerance=_tolerance(weights),
        **known,
    )


def of_kernel(layer: str, module: nn.Module, output: Tensor, arguments: dict[str, Any]) -> Call:
    """Describe a call of `scaled_dot_product_attention`."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.is_nested:
        raise ValueError(f"layer {layer!r} attends over nested tensors: pass padded ones instead")
    mask = arguments["attn_mask"]
    if hasattr(mask, "_materialize"):  # a causal bias of torch.nn.attention.bias
        mask = mask._materialize(query.device)
    if arguments["enable_gqa"]:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scale = query.size(-1) ** -0.5 if arguments["scale"] is None else arguments["scale"]
    n_queries, n_keys = query.size(-2), key.size(-2)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    fold = _folding(batch, arguments.get("heads") or heads_of(module))

    def whole(tensor: Tensor) -> Tensor:
        return fold(tensor.expand(*batch, *tensor.shape[-2:]))

    def logits(rows: Rows) -> Tensor:
        asked = query[..., rows, :]
        dtype = _working(query.dtype)
        if asked.size(-2) == 1:  # half the time of a product of matrices
            scores = (asked.to(dtype) * key.to(dtype)).sum(-1, keepdim=True).mT * scale
        else:
            scores = asked.to(dtype) @ key.to(dtype).mT * scale
        if mask is not None:
            hiding = mask if mask.dim() < 2 or mask.size(-2) == 1 else mask[..., rows, :]
            if hiding.dtype == torch.bool:
                scores = scores.masked_fill(~hiding, -torch.inf)
            else:
                scores = scores + hiding
        if arguments["is_causal"]:  # aligned at the top left, as in torch
            seen = torch.arange(n_queries, device=query.device)[rows, None]
            later = torch.arange(n_keys, device=query.device) > seen
            scores = scores.masked_fill(later, -torch.inf)
        return whole(scores)

    def mismatch(weights: Tensor, rows: Rows) -> Tensor:
        mine = weights[:1] @ whole(value)[:1].to(weights.dtype)
        theirs = fold(output[..., rows, :])[:1].to(weights.dtype)
        return (mine - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)

    n_groups, n_heads = whole(query[..., :1, :1]).shape[:2]
    return Call(
        layer=layer,
        kind="sdpa",
        shape=(n_groups, n_heads, n_queries, n_keys),
        logits=logits,
        mismatch=None if arguments["dropout_p"] else mismatch,
        device=query.device,
        tolerance=_tolerance(output),
        samples=arguments.get("samples", None if batch else 1),
    )


def heads_of(module: nn.Module) -> int | None:
    """How many heads a layer says it has."""
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return None


def _folding(batch: torch.Size, heads: int | None) -> Callable[[Tensor], Tensor]:
    """How to bring axes `(*batch, a, b)` into the form `(group, head, a, b)`."""
    if not batch:
        return lambda tensor: tensor[None, None]
    if len(batch) == 1:
        n_heads = heads if heads and batch[0] % heads == 0 else 1
        return lambda tensor: tensor.unflatten(0, (-1, n_heads))
    if len(batch) > 2 and heads and batch[-1] != heads and batch[1] == heads:
        return lambda tensor: tensor.movedim(1, -3).flatten(0, -4)  # windows come after the heads
    return lambda tensor: tensor.flatten(0, -4)


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _tolerance(output: Tensor) -> float:
    dtype = output.dtype
    if torch.is_autocast_enabled(output.device.type):
        dtype = torch.get_autocast_dtype(output.device.type)
    return _TOLERANCE.get(dtype, 1e-3)
