"""What is kept of a token's logits: a few numbers, never the logits."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

MEASURES = ("max softmax", "margin", "entropy", "cosine", "patience")
HEADLESS = ("cosine",)  # needs no logits to decide

_CHUNK = 2**22  # logits looked at together


def token_statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers `(4, row)` and predictions `(row,)` from logits `(row, class)`.

    The numbers are the cross-entropy and three confidences from 0 to 1: the largest probability,
    its distance to the second largest, and 1 - entropy / ln(classes).
    """
    x = logits.float() if logits.itemsize < 4 else logits
    p = x.softmax(-1)
    top = p.topk(2, dim=-1).values
    entropy = torch.special.entr(p).sum(-1) / math.log(p.shape[-1])
    loss = F.cross_entropy(x, targets, reduction="none")
    sure = torch.stack([top[:, 0], top[:, 0] - top[:, 1], 1 - entropy])
    return torch.cat([loss[None], sure.clamp(0, 1)]), x.argmax(-1)  # rounding may leave [0, 1]


def in_chunks(
    hidden: Tensor,
    kept: Tensor,
    classes: int,
    head: Callable[[Tensor], Tensor],
    *,
    by_token: bool,
) -> Iterator[Tensor]:
    """Logits `(row, class)` of the places that `kept` marks, some rows at a time.

    Args:
        hidden: A layer's output, samples first.
        kept: Which places count, `(sample,)` or `(sample, token)`.
        classes: The width of the logits.
        head: From (some samples of) `hidden` to logits.
        by_token: Whether the head sees each token by itself, so that samples may be cut.
    """
    if by_token:
        rows = hidden[kept]
        for some in rows.split(max(1, _CHUNK // classes)):
            yield head(some[None])[0]
        return
    tokens = kept[0].numel()
    size = max(1, _CHUNK // (classes * tokens))
    for some, mask in zip(hidden.split(size), kept.split(size), strict=True):
        yield head(some)[mask]


def cosine(before: Tensor | None, after: Tensor, *, by_token: bool) -> Tensor:
    """Cosine of a layer's input and output at each place, negative ones 0; NaN if not alike."""
    places = after.shape[:2] if by_token else after.shape[:1]
    if before is None or before.shape != after.shape:
        return torch.full(places, torch.nan, device=after.device)
    axis = len(places)
    a, b = (t.flatten(axis) if t.dim() > axis else t[..., None] for t in (before, after))
    a, b = (t.float() if t.itemsize < 4 else t for t in (a, b))
    return F.cosine_similarity(a, b, dim=-1).clamp(0, 1)


def patience(predictions: Tensor) -> Tensor:
    """The share of all exits that agree in a row up to each one, from `(exit, row)`."""
    counts = torch.ones_like(predictions, dtype=torch.float64)
    for i in range(1, len(predictions)):
        agrees = predictions[i] == predictions[i - 1]
        counts[i] = torch.where(agrees, counts[i - 1] + 1, 1.0)
    return counts / len(predictions)
